"""What numba computes of bfloat16 is the float32 result, rounded once."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import as_element, as_float, as_halves, as_singles, as_words
from hybridrt.kernels.cpu.jit import kernel
from hybridrt.kernels.cpu.vectors import aligned
from hybridrt.kernels.gated import gated
from hybridrt.kernels.gated_rms_norm import gated_rms_norm
from hybridrt.kernels.reference import gated_rms_norm as reference_gated_norm
from hybridrt.kernels.reference import gates
from hybridrt.kernels.reference import rms_norm as reference_norm
from hybridrt.kernels.reference import rotate as reference_rotate
from hybridrt.kernels.rms_norm import rms_norm
from hybridrt.kernels.rotate import rotate
from tests.harness.properties import bounded

HALF_STEP = 2.0**-8  # a bfloat16 has 8 significant bits
FLOAT32 = 2.0**-16  # what sums of some hundred float32 terms, and `fast_exp`, may be off by
ROWS = st.lists(st.integers(1, 5), min_size=1, max_size=2)
SIZES = st.sampled_from([2, 6, 16, 34, 128, 130])


def _random(*shape: int, spread: float = 1.0) -> Tensor:
    return (spread * torch.randn(shape)).bfloat16()


def _among_others(x: Tensor) -> Tensor:
    """The same numbers with others between the rows, as a part of a projection has."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 7), torch.nan, dtype=x.dtype)
    wide[..., 3:-4] = x
    return wide[..., 3:-4]


def _assert_rounded(found: Tensor, exact: Tensor, scale: float = 1.0) -> None:
    """`found` is `exact` but for one rounding; `scale` is that of what cancels in it."""
    assert found.dtype == torch.bfloat16
    error = (found.double() - exact.double()).abs()
    assert (error <= (HALF_STEP + FLOAT32) * exact.double().abs() + FLOAT32 * scale).all()


@kernel
def _there_and_back(given, result):
    for i in range(len(given)):
        result[i] = as_element(as_float(given[i]), result)


def test_every_bfloat16_stays_what_it_is() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    back = np.empty_like(bits)
    _there_and_back(bits, back)
    same, nan = bits == back, torch.from_numpy(bits).view(torch.bfloat16).isnan().numpy()
    assert (same | nan).all()
    assert torch.from_numpy(back).view(torch.bfloat16).isnan().numpy()[nan].all()


@bounded(50)
@given(numbers=st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_rounding_is_that_of_torch(numbers: list[float]) -> None:
    given = np.array(numbers, np.float32)
    found = np.empty(len(given), np.uint16)
    _there_and_back(given, found)
    expected = torch.tensor(numbers, dtype=torch.float32).bfloat16()
    assert torch.equal(
        torch.from_numpy(found).view(torch.bfloat16).nan_to_num(7), expected.nan_to_num(7)
    )


@bounded(60)
@given(rows=ROWS, size=SIZES, offset=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 99))
def test_rms_norm(rows: list[int], size: int, offset: float, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = _random(*rows, size, spread=3.0), _random(size)
    exact = reference_norm.rms_norm(x.float(), weight.float(), 1e-6, offset)
    _assert_rounded(rms_norm(x, weight, 1e-6, offset), exact)
    _assert_rounded(rms_norm(_among_others(x), weight, 1e-6, offset), exact)


@bounded(60)
@given(
    tokens=st.integers(0, 5),
    heads=st.integers(1, 3),
    half=st.integers(1, 20),
    more=st.sampled_from([0, 3]),
    interleaved=st.booleans(),
    back=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rotate(
    tokens: int, heads: int, half: int, more: int, interleaved: bool, back: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x, table = _random(tokens, heads, 2 * half + more), torch.randn(9, 2, half)
    positions = torch.randint(0, 9, (tokens,))
    exact = reference_rotate.rotate(x.float(), table, positions, interleaved, back)
    for same in (x, _among_others(x), x.transpose(0, 1).contiguous().transpose(0, 1)):
        _assert_rounded(rotate(same, table, positions, interleaved, back), exact, scale=8.0)


def test_positions_that_are_apart_in_memory() -> None:
    x, table = _random(3, 2, 8), torch.randn(9, 2, 4)
    apart = torch.tensor([[8, 0], [1, 0], [4, 0]])[:, 0]
    assert torch.equal(rotate(x, table, apart), rotate(x, table, apart.clone()))


@bounded(40)
@given(rows=ROWS, size=SIZES, spread=st.sampled_from([1.0, 100.0]), seed=st.integers(0, 99))
def test_silu_gates(rows: list[int], size: int, spread: float, seed: int) -> None:
    torch.manual_seed(seed)
    gate_up = _random(*rows, 2 * size, spread=spread)
    exact = gates.gated(gate_up.float(), "silu", 1.0, 1.0)
    _assert_rounded(gated(gate_up), exact)
    _assert_rounded(gated(_among_others(gate_up)), exact)


@bounded(60)
@given(
    rows=ROWS,
    groups=st.sampled_from([1, 2]),
    size=SIZES,
    norm_before_gate=st.booleans(),
    gate=st.sampled_from(["silu", "sigmoid"]),
    seed=st.integers(0, 99),
)
def test_gated_norm(
    rows: list[int],
    groups: int,
    size: int,
    norm_before_gate: bool,
    gate: Literal["silu", "sigmoid"],
    seed: int,
) -> None:
    torch.manual_seed(seed)
    groups = groups if len(rows) == 1 else 1
    x, z = _random(*rows, size * groups), _random(*rows, size * groups)
    weight = _random(size * groups)
    rest = (1e-6, groups, norm_before_gate, gate)
    exact = reference_gated_norm.gated_rms_norm(x.float(), z.float(), weight.float(), *rest)
    _assert_rounded(gated_rms_norm(x, z, weight, *rest), exact, scale=8.0)
    strided = gated_rms_norm(_among_others(x), _among_others(z), weight, *rest)
    _assert_rounded(strided, exact, scale=8.0)


@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: rms_norm(x, torch.ones(4).bfloat16(), 1e-6),
        lambda x: gated(torch.cat([torch.ones_like(x), x], dim=-1)),
        lambda x: rotate(x[None], torch.ones(1, 2, 2), torch.zeros(1, dtype=torch.int64)),
    ],
    ids=["rms_norm", "gated", "rotate"],
)
def test_what_is_no_number_is_not_hidden(
    function: Callable[[Tensor], Tensor], number: float
) -> None:
    x = torch.ones(1, 4).bfloat16()
    x[0, 2] = number
    assert not function(x).isfinite().all()


def test_many_rows_are_each_as_alone() -> None:
    torch.manual_seed(0)
    x, weight = _random(300, 256), _random(256)
    table, positions = torch.randn(300, 2, 64), torch.arange(300)
    together = rms_norm(x, weight, 1e-6), gated(x), rotate(x.view(300, 2, 128), table, positions)
    for t in (0, 17, 299):
        own = x[t : t + 1]
        alone = rotate(own.view(1, 2, 128), table, positions[t : t + 1])
        assert torch.equal(together[0][t], rms_norm(own, weight, 1e-6)[0])
        assert torch.equal(together[1][t], gated(own)[0])
        assert torch.equal(together[2][t], alone[0])


@kernel
def _write_as_words(words, found):  # pragma: no cover  (compiled)
    """And as they are read by halves and by numbers, of room that nothing but its words names."""
    own = as_words(aligned(len(words)))
    for i in range(len(words)):
        own[i] = words[i]
    other = aligned(len(words))  # in the same room if that was given back
    for i in range(len(words)):
        other[i] = 0
    for i in range(len(found)):
        found[i] = as_halves(own)[i]
    return len(as_singles(own)), as_singles(own)[len(words) - 1]


def test_memory_is_kept_by_who_reads_it_as_other_numbers() -> None:
    words = np.arange(7, dtype=np.uint32) << 16 | 0x3F80_0001
    halves = np.zeros(14, np.uint16)
    assert _write_as_words(words, halves) == (7, words.view(np.float32)[-1])
    assert halves.tolist() == words.view(np.uint16).tolist()
