"""Weights of 8 and 4 bits: what they stand for, and products with them."""

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrt.kernels.blocked_matrices import BLOCK
from hybridrt.kernels.cpu import quantised_dot
from hybridrt.kernels.cpu import quantised_linear as quantised
from hybridrt.kernels.cpu.quantised_linear import FEW, TOKENS
from hybridrt.kernels.cpu.streams import FEWEST_BYTES
from hybridrt.kernels.cpu.vectors import HAS_REGISTERS
from hybridrt.kernels.cpu.whole_inputs import TOO_MUCH, of_groups, row_bytes
from hybridrt.kernels.quantised_linear import (
    GROUP,
    Bits,
    QuantisedWeight,
    can_quantise,
    quantise_weight,
    quantised_linear,
)
from hybridrt.kernels.reference.quantised_linear import dequantise_weight
from tests.harness.properties import bounded
from tests.harness.tolerance import rms

BITS: tuple[Bits, ...] = (8, 4)


@bounded(60)
@given(
    outputs=st.integers(1, 11),
    groups=st.integers(1, 3),
    bits=st.sampled_from(BITS),
    size=st.sampled_from([1e-30, 0.02, 1.0, 1e30]),
    seed=st.integers(0, 99),
)
def test_a_weight_is_off_by_half_a_step(
    outputs: int, groups: int, bits: Bits, size: float, seed: int
) -> None:
    torch.manual_seed(seed)
    weight = (size * torch.randn(outputs, groups * GROUP[bits])).bfloat16()
    weight[0] = 0
    found = quantise_weight(weight, bits)
    padded = -(-outputs // BLOCK) * BLOCK
    assert found.values.numel() * 8 == padded * weight.shape[1] * bits
    by_group = weight.double().unflatten(1, (groups, -1))
    error = (found.dequantised().double() - weight.double()).abs().unflatten(1, (groups, -1))
    step = by_group.abs().amax(-1, keepdim=True) / 2 ** (bits - 1)
    # Half a step; a whole one where the other end of the range is one short; and what rounding
    # a scale and a weight to bfloat16 adds to a number of so many steps.
    assert (error <= step * (1 + 2**bits * 2.0**-9)).all()
    inside = by_group.abs() < by_group.abs().amax(-1, keepdim=True) * (1 - 2.0 ** (2 - bits))
    assert (error[inside] <= (step * (0.5 + 2**bits * 2.0**-9)).expand_as(error)[inside]).all()


@pytest.mark.parametrize(("bits", "share"), [(8, 0.0075), (4, 0.095)])
def test_the_error_is_what_is_written_down(bits: Bits, share: float) -> None:
    torch.manual_seed(0)
    weight = torch.randn(256, 1024).bfloat16()
    error = rms(quantise_weight(weight, bits).dequantised() - weight) / rms(weight)
    assert 0.8 * share < error < share


@bounded(60)
@given(
    tokens=st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, FEW, FEW + 1, TOKENS, TOKENS + 1]),
    outputs=st.sampled_from([1, 7, 63, 64, 67, 130]),
    groups=st.integers(1, 3),
    bits=st.sampled_from(BITS),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products(
    tokens: int, outputs: int, groups: int, bits: Bits, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    weight = quantise_weight(torch.randn(outputs, groups * GROUP[bits]).bfloat16(), bits)
    x = torch.randn(tokens, groups * GROUP[bits]).bfloat16()
    shift = torch.randn(outputs).bfloat16() if bias else None
    exact = x.double() @ weight.dequantised().double().T
    exact = exact if shift is None else exact + shift.double()
    found = quantised_linear(x, weight, shift)
    assert found.dtype == torch.bfloat16 and found.shape == exact.shape
    # A product and its bias are rounded, and `dequantised` weights.
    scale = x.double().norm(dim=-1, keepdim=True) * weight.dequantised().double().norm(dim=-1)
    assert ((found - exact).abs() <= 2.0**-8 * exact.abs() + 2.0**-8 * scale).all()


@pytest.mark.parametrize("by_tiles", [True, False])
@pytest.mark.parametrize("bits", BITS)
def test_a_token_is_as_alone_in_any_company(
    bits: Bits, by_tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_tiles:
        monkeypatch.setattr(quantised, "multiplies_tiles", lambda: False)
    torch.manual_seed(1)
    weight = quantise_weight(torch.randn(70, 256).bfloat16(), bits)
    x = torch.randn(TOKENS + 1, 256).bfloat16()
    alone = torch.cat([quantised_linear(row[None], weight, None) for row in x])
    fewest = quantised.FEWEST_BY_PAIRS, quantised.FEWEST_BY_BYTES
    for count in (2, 3, 7, *fewest, FEW, FEW + 1, TOKENS + 1):
        together = quantised_linear(x[:count], weight, None)
        assert torch.equal(together, alone[:count])


@pytest.mark.parametrize("bits", BITS)
def test_the_largest_sums_of_a_group_are_exact_too(bits: Bits) -> None:
    """Each weight the furthest from 0 that there is, each input all bits, but for some odd ones."""
    weight = quantise_weight(torch.full((70, 256), 0.75).bfloat16(), bits)
    x = torch.full((16, 256), 255 / 128)
    x[torch.arange(16), 7 * torch.arange(16)] = 3 * 2.0**-14
    x = x.bfloat16()
    alone = torch.cat([quantised_linear(row[None], weight, None) for row in x])
    assert torch.equal(quantised_linear(x, weight, None), alone)
    exact = x.double() @ weight.dequantised().double().T
    assert torch.equal(alone, exact.bfloat16())


@pytest.mark.parametrize("bits", BITS)
def test_results_that_are_streamed_are_the_same(bits: Bits) -> None:
    torch.manual_seed(5)
    outputs = FEWEST_BYTES // 2 + 32
    weight = quantise_weight(torch.randn(outputs, 128).bfloat16(), bits)
    x = torch.randn(40, 128).bfloat16()
    alone = torch.cat([quantised_linear(row[None], weight, None) for row in x])
    for count in (2, 12, 40):
        assert torch.equal(quantised_linear(x[:count], weight, None), alone[:count])


def test_what_has_no_whole_groups_is_left() -> None:
    assert can_quantise(torch.empty(8, 128), 8) and can_quantise(torch.empty(8, 96), 4)
    assert not can_quantise(torch.empty(8, 96), 8)
    assert not can_quantise(torch.empty(8, 48), 4)


def test_in_float32_it_is_the_dequantised_weight() -> None:
    torch.manual_seed(2)
    weight, x = quantise_weight(torch.randn(8, 128), 8), torch.randn(3, 128)
    expected = x @ weight.dequantised().float().T
    torch.testing.assert_close(quantised_linear(x, weight, None), expected)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-30, 1.0, 1e30, 3e38])
@pytest.mark.parametrize("bits", BITS)
def test_inputs_become_whole_numbers(bits: Bits, size: float) -> None:
    """What is near a group's largest as it was; what isn't, by a small part of that."""
    torch.manual_seed(4)
    group = GROUP[bits]
    x = (torch.rand(3, 2 * group) * 2 - 1).bfloat16()
    x[1] *= torch.logspace(0, -6, 2 * group).bfloat16()
    x[:, group:] *= 2.0**-20
    x = (x.float() * size).bfloat16()
    numbers, powers, begins, parts = _rows(x, group, bits)
    whole = numbers.double().unflatten(1, (2, group))
    found, given = whole * powers[..., None], x.double().unflatten(1, (2, group))
    largest = given.abs().amax(-1, keepdim=True)
    assert ((found - given).abs() <= 2.0**-15 * largest + 2.0**-126).all()
    near = (given.abs() >= largest / 128) & (largest >= 2.0**-112)
    assert torch.equal(found[near], given[near])
    assert torch.equal(parts, numbers.double())
    too_much = TOO_MUCH if bits == 4 else 0
    assert torch.equal(begins.double(), -too_much * whole.sum(-1))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("what", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("tokens", [1, FEW + 1])
def test_what_is_no_number_stays_none(tokens: int, what: float, bits: Bits) -> None:
    weight = quantise_weight(torch.randn(70, 256).bfloat16(), bits)
    x = torch.ones(tokens, 256, dtype=torch.bfloat16)
    x[0, 200] = what
    found = quantised_linear(x, weight, None)
    assert found[0].isnan().all() and found[1:].isfinite().all()


@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_products_on_every_kind_of_processor(
    bits: Bits, in_registers: bool, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_registers and not HAS_REGISTERS:
        pytest.skip("the processor has no AVX-512")
    monkeypatch.setattr(quantised_dot, "HAS_REGISTERS", in_registers)
    group, groups = GROUP[bits], 2
    dot, inputs = quantised_dot.make_group_dot(bits, [tokens]), groups * group

    @numba.njit
    def run(*args: int) -> None:
        dot(*args)

    torch.manual_seed(3)
    weight = quantise_weight(torch.randn(BLOCK, inputs).bfloat16(), bits)
    x, sums = torch.randn(tokens, inputs).bfloat16(), torch.ones(tokens, BLOCK)
    rows, step = _whole(x, group, bits), row_bytes(inputs, groups)
    of_weight = weight.values.data_ptr(), weight.scales.data_ptr(), groups, group
    of_x = rows.data_ptr(), rows.data_ptr() + of_groups(inputs), step
    run(0, tokens, *of_weight, *of_x, sums.data_ptr())
    numbers, powers, *_ = _rows(x, group, bits)
    whole = numbers.double().unflatten(1, (groups, group)) * powers[..., None]
    exact = 1 + whole.flatten(1) @ _exact(weight).T
    assert (sums - exact).abs().max() <= 1e-6 * exact.abs().max()


def _whole(x: torch.Tensor, group: int, bits: Bits) -> torch.Tensor:
    tokens, inputs = x.shape
    rows = torch.empty(tokens, row_bytes(inputs, inputs // group), dtype=torch.uint8)
    quantised._make_whole(1, x.data_ptr(), rows.data_ptr(), tokens, inputs, group, bits, True)
    return rows


def _rows(x: torch.Tensor, group: int, bits: Bits) -> tuple[torch.Tensor, ...]:
    """Numbers, powers, what sums begin with, and numbers put together of what AMX multiplies."""
    rows, inputs = _whole(x, group, bits), x.shape[1]
    numbers = rows[:, : 2 * inputs].contiguous().view(torch.int16)
    of_tiles = rows[:, 2 * inputs : of_groups(inputs)].contiguous()
    if bits == 4:
        both = of_tiles.view(torch.bfloat16).double().unflatten(1, (-1, 2, group))
        parts = both.sum(2).flatten(1)
    else:
        upper, lower = of_tiles[:, :inputs].view(torch.int8), of_tiles[:, inputs : 2 * inputs]
        parts = 256 * upper.double() + lower.double()
    rest = rows[:, of_groups(inputs) :][:, : 8 * (inputs // group)].contiguous()
    powers, begins = rest.view(torch.float32), rest.view(torch.int32)
    return numbers, powers[:, ::2].double(), begins[:, 1::2], parts


def _exact(weight: QuantisedWeight) -> torch.Tensor:
    """What it stands for, with no digit rounded away."""
    scales = weight.scales.double()
    return dequantise_weight(weight.values, scales, weight.bits, weight.outputs)
