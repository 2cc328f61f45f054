"""Weights of 8 and 4 bits: what they stand for, and products with them."""

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrt.kernels.blocked_matrices import BLOCK
from hybridrt.kernels.cpu.quantised_dot import TOO_MUCH, make_group_dot
from hybridrt.kernels.cpu.quantised_linear import FEW, TOKENS
from hybridrt.kernels.cpu.vectors import MULTIPLIES_PAIRS
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

multiplies_pairs = pytest.mark.skipif(
    not MULTIPLIES_PAIRS, reason="the processor has no AVX512-BF16"
)


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


@pytest.mark.parametrize("bits", BITS)
def test_a_token_is_as_alone_in_any_company(bits: Bits) -> None:
    torch.manual_seed(1)
    weight = quantise_weight(torch.randn(70, 256).bfloat16(), bits)
    x = torch.randn(TOKENS + 1, 256).bfloat16()
    alone = torch.cat([quantised_linear(row[None], weight, None) for row in x])
    for count in (2, 3, 7, FEW, FEW + 1, TOKENS + 1):
        together = quantised_linear(x[:count], weight, None)
        assert torch.equal(together, alone[:count])


def test_what_has_no_whole_groups_is_left() -> None:
    assert can_quantise(torch.empty(8, 128), 8) and can_quantise(torch.empty(8, 96), 4)
    assert not can_quantise(torch.empty(8, 96), 8)
    assert not can_quantise(torch.empty(8, 48), 4)


def test_in_float32_it_is_the_dequantised_weight() -> None:
    torch.manual_seed(2)
    weight, x = quantise_weight(torch.randn(8, 128), 8), torch.randn(3, 128)
    expected = x @ weight.dequantised().float().T
    torch.testing.assert_close(quantised_linear(x, weight, None), expected)


@pytest.mark.parametrize(
    ("most_by_pairs", "apart"),
    [
        pytest.param(2, False, marks=multiplies_pairs, id="AVX512-BF16"),
        pytest.param(0, False, id="neither"),
        pytest.param(0, True, id="AMX"),
    ],
)
@pytest.mark.parametrize("bits", BITS)
def test_products_on_every_kind_of_processor(bits: Bits, most_by_pairs: int, apart: bool) -> None:
    tokens, groups = 2, 2
    dot, inputs = make_group_dot(bits, most_by_pairs, apart), groups * GROUP[bits]

    @numba.njit
    def run(*args: int) -> None:
        dot(*args)

    torch.manual_seed(3)
    weight = quantise_weight(torch.randn(BLOCK, inputs).bfloat16(), bits)
    x, sums = torch.randn(tokens, inputs).bfloat16(), torch.ones(tokens, BLOCK)
    begins = torch.zeros(tokens, groups)
    if bits == 4:
        begins -= TOO_MUCH * x.float().unflatten(1, (groups, -1)).sum(-1)
    of_weight = weight.values.data_ptr(), weight.scales.data_ptr(), groups, GROUP[bits]
    of_x = x.data_ptr(), 2 * inputs, begins.data_ptr(), 4 * groups
    run(0, tokens, *of_weight, *of_x, sums.data_ptr())
    exact = 1 + x.double() @ _exact(weight).T
    assert (sums - exact).abs().max() <= 1e-5 * exact.abs().max()


def _exact(weight: QuantisedWeight) -> torch.Tensor:
    """What it stands for, with no digit rounded away."""
    scales = weight.scales.double()
    return dequantise_weight(weight.values, scales, weight.bits, weight.outputs)
