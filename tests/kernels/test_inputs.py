"""What scans and the delta rule are given, and gates, in numba against their definitions."""

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.delta_inputs import delta_inputs
from hybridrt.kernels.gated import add_gated, gated, gated_by, sigmoid_gated
from hybridrt.kernels.reference import delta_inputs as delta_reference
from hybridrt.kernels.reference import scan_inputs as scan_reference
from hybridrt.kernels.scan_inputs import scan_inputs
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_small_rms_ratio

TOKENS = st.sampled_from([0, 1, 3, 40])
LIMITS = [(0.0, inf), (1e-3, 0.1)]


def _bfloat16(*shape: int, spread: float, seed: int) -> Tensor:
    """Columns from the middle of wider rows, as a split of a projection gives them."""
    draw = torch.Generator().manual_seed(seed)
    wide = torch.randn(shape[0], shape[1] + 6, generator=draw).mul_(spread).bfloat16()
    return wide[:, 3 : 3 + shape[1]]


@bounded(40)
@given(
    tokens=TOKENS,
    channels=st.sampled_from([1, 7, 48, 2000]),
    state_size=st.sampled_from([(), (1,), (16,)]),
    biased=st.booleans(),
    limits=st.sampled_from(LIMITS),
    spread=st.sampled_from([0.1, 3.0, 40.0]),
    seed=st.integers(0, 99),
)
def test_scan_inputs(
    tokens: int,
    channels: int,
    state_size: tuple[int, ...],
    biased: bool,
    limits: tuple[float, float],
    spread: float,
    seed: int,
) -> None:
    draw = torch.Generator().manual_seed(seed)
    dt = _bfloat16(tokens, channels, spread=spread, seed=seed)
    bias = torch.randn(channels, generator=draw) if biased else None
    A_log = torch.randn(channels, *state_size, generator=draw).mul_(2)
    found = scan_inputs(dt, bias, A_log, limits)
    right = scan_reference.scan_inputs(
        dt.double(), None if bias is None else bias.double(), A_log.double(), limits
    )
    for one, other in zip(found, right, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-37)


def test_steps_of_extremes() -> None:
    dt = torch.tensor([[-inf, -1e30, -100.0, 0.0, 100.0, 1e30, inf, torch.nan]]).bfloat16()
    steps, _ = scan_inputs(dt, None, torch.zeros(8), (0.0, inf))
    expected = F.softplus(dt.float())
    torch.testing.assert_close(steps, expected, rtol=1e-5, atol=1e-37, equal_nan=True)


@bounded(40)
@given(
    tokens=TOKENS,
    key_heads=st.sampled_from([1, 2, 16]),
    k_dim=st.sampled_from([1, 5, 16, 128]),
    values_a_key=st.integers(1, 3),
    beta_scale=st.sampled_from([1.0, 2.0]),
    spread=st.sampled_from([1e-4, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_delta_inputs(
    tokens: int,
    key_heads: int,
    k_dim: int,
    values_a_key: int,
    beta_scale: float,
    spread: float,
    seed: int,
) -> None:
    heads, draw = key_heads * values_a_key, torch.Generator().manual_seed(seed)
    qk = _bfloat16(tokens, 2 * key_heads * k_dim, spread=spread, seed=seed)
    a, b = (_bfloat16(tokens, heads, spread=spread, seed=seed + i) for i in (1, 2))
    A_log, dt_bias = torch.randn(2, heads, generator=draw)
    found = delta_inputs(qk, a, b, A_log, dt_bias, key_heads, beta_scale)
    right = delta_reference.delta_inputs(qk, a, b, A_log, dt_bias, key_heads, beta_scale)
    for one, other in zip(found, right, strict=True):
        assert one.dtype == torch.float32 and one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=5e-6, atol=1e-37)


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_a_gate_beside_its_values_is_one_behind_the_other(tokens: int) -> None:
    """And neither depends on how far the rows are apart."""
    gate, values = (_bfloat16(tokens, 1000, spread=3.0, seed=seed) for seed in (1, 2))
    found = gated_by(values, gate)
    assert torch.equal(found, gated_by(values.contiguous(), gate.contiguous()))
    assert torch.equal(found, gated(torch.cat([gate, values], dim=-1)))
    assert_small_rms_ratio(found, values.double() * F.silu(gate.double()))


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_what_a_token_gates_is_added(tokens: int) -> None:
    values, more = (_bfloat16(tokens, 1000, spread=3.0, seed=seed) for seed in (1, 2))
    gate = _bfloat16(tokens, 1, spread=3.0, seed=3)
    found = add_gated(values, more, gate)
    for t in range(tokens):
        row = slice(t, t + 1)
        assert torch.equal(found[row], add_gated(values[row], more[row], gate[row]))
    assert_small_rms_ratio(found, values.double() + gate.double().sigmoid() * more.double())


@pytest.mark.parametrize("tokens", [0, 1, 3, 40])
@pytest.mark.parametrize("size", [1, 9, 256])
def test_sigmoids_gate_each_value_or_all_of_a_head(tokens: int, size: int) -> None:
    """And a head's values don't depend on those beside it, nor on how far the rows are apart."""
    wide = _bfloat16(tokens, 4 * size, spread=20.0, seed=1)
    values, gates = wide.unflatten(1, (2, 2, size)).unbind(1)
    for gate in (gates, gates[..., :1], gates[..., :1].contiguous()):
        found = sigmoid_gated(values, gate)
        assert found.is_contiguous()
        assert torch.equal(found[:, 0], sigmoid_gated(values[:, 0], gate[:, 0]))
        if tokens:
            assert_small_rms_ratio(found, values.double() * gate.double().sigmoid())


def test_sigmoids_of_extremes() -> None:
    gate = torch.tensor([-inf, -1e30, -90.0, 0.0, 90.0, 1e30, inf, torch.nan]).bfloat16()
    values = torch.tensor([2.0, -1.0, torch.nan])[:, None].bfloat16().expand(3, 8)
    found = sigmoid_gated(values, gate.expand(3, 8))
    right = values.float() * torch.sigmoid(gate.float())
    torch.testing.assert_close(found.float(), right, rtol=2**-8, atol=1e-37, equal_nan=True)
