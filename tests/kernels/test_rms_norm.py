"""add_rms_norm gives the bits of a sum and of its norm apart."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.reference import rms_norm as reference
from hybridrt.kernels.rms_norm import add_rms_norm, rms_norm
from hybridrt.kernels.tape import recorded
from tests.harness.properties import bounded

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _check(x: Tensor, y: Tensor, weight: Tensor, offset: float = 0.0, scale: float = 1.0) -> None:
    total, normed = add_rms_norm(x, y, weight, 1e-6, offset, scale)
    expected = x + y * scale, rms_norm(x + y * scale, weight, 1e-6, offset)
    for found, right in zip((total, normed), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=0, equal_nan=True)
    assert normed.dtype == weight.dtype


def _among_others(x: Tensor) -> Tensor:
    """The same numbers with others between the rows."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 7), torch.nan, dtype=x.dtype)
    wide[..., 3:-4] = x
    return wide[..., 3:-4]


@bounded(60)
@given(
    rows=st.lists(st.integers(0, 5), max_size=3),
    size=st.sampled_from([1, 2, 15, 16, 17, 33, 64, 130, 1000]),
    stream=st.sampled_from(DTYPES),
    dtype=st.sampled_from(DTYPES),
    offset=st.sampled_from([0.0, 1.0]),
    scale=st.sampled_from([1.0, 0.22, -3.0]),
    seed=st.integers(0, 99),
)
def test_the_bits_of_a_sum_and_its_norm(
    rows: list[int],
    size: int,
    stream: torch.dtype,
    dtype: torch.dtype,
    offset: float,
    scale: float,
    seed: int,
) -> None:
    """The stream and what is added may have dtypes of their own."""
    draw = torch.Generator().manual_seed(seed)
    x, y = (3 * torch.randn(*rows, size, generator=draw) for _ in range(2))
    x, y, weight = x.to(stream), y.to(dtype), torch.randn(size, generator=draw).to(dtype)
    for other in (x, y):
        _check(x, other, weight, offset, scale)
        _check(y, _among_others(other), weight, offset, scale)
    _check(_among_others(x.mT).mT if len(rows) else x, y, weight, offset, scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [(), (3,), (2, 3), (2, 1, 3)], ids=str)
def test_numbers_with_others_between_them(rows: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = torch.randn(*rows, 10).to(dtype)[..., ::2], torch.randn(5).to(dtype)
    expected = rms_norm(x.contiguous(), weight, 1e-6)
    assert torch.equal(rms_norm(x, weight, 1e-6), expected)
    _check(x, x, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 8, 33])
def test_rows_of_a_model(rows: int, dtype: torch.dtype) -> None:
    """With the most of them several threads share the rows."""
    draw = torch.Generator().manual_seed(rows)
    x, y = (torch.randn(rows, 1024, generator=draw).to(dtype) for _ in range(2))
    weight = torch.randn(1024, generator=draw).to(dtype)
    _check(x, y, weight)
    total, normed = add_rms_norm(x, y, weight, 1e-6)
    alone = add_rms_norm(x[-1:], y[-1:], weight, 1e-6)
    assert torch.equal(total[-1:], alone[0]) and torch.equal(normed[-1:], alone[1])


def test_all_numbers_of_bfloat16() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    draw = torch.Generator().manual_seed(0)
    x, y = (every[torch.randperm(2**16, generator=draw)].view(-1, 4) for _ in range(2))
    for scale in (1.0, 0.22):
        _check(x, y, torch.ones(4).bfloat16(), scale=scale)


@pytest.mark.parametrize("size", [48, 320, 1536])
def test_a_mean_is_the_same_in_a_loop_over_rows(size: int) -> None:
    """Which could multiply by what it has divided 1 by once: another number, if rarely."""
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2**21 // size, size, generator=draw).bfloat16() for _ in range(2))
    _check(x, y, torch.randn(size, generator=draw).bfloat16())


def test_the_reference_adds_and_norms() -> None:
    x, y, weight = torch.randn(3, 5), torch.randn(3, 5), torch.randn(5)
    total, normed = reference.add_rms_norm(x, y, weight, 1e-6, 1.0, 0.5)
    assert torch.equal(total, x + 0.5 * y)
    assert torch.equal(normed, reference.rms_norm(total, weight, 1e-6, 1.0))


@torch.inference_mode()
def test_a_tape_has_one_call_for_both() -> None:
    x, y = (torch.randn(2, 40).bfloat16() for _ in range(2))
    weight = torch.randn(40).bfloat16()
    with recorded() as tape:
        total, normed = add_rms_norm(x, y, weight, 1e-6)
    assert tape.flaw is None and len(tape) == 1
    x.copy_(torch.randn(2, 40))
    tape.replay()
    assert torch.equal(total, x + y) and torch.equal(normed, rms_norm(x + y, weight, 1e-6))
