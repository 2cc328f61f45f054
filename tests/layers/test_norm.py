"""Norms against their formulas."""

import pytest
import torch
from torch import Tensor

from hybridrt.layers.norm import (
    GatedRMSNorm,
    GroupedOffsetRMSNorm,
    LayerNorm,
    OffsetLayerNorm,
    OffsetRMSNorm,
    RMSNorm,
    SelfGatedRMSNorm,
    UnbiasedLayerNorm,
)
from tests.harness.tolerance import assert_right, assert_small_rms_ratio

DTYPES = [torch.float32, torch.bfloat16]


def _normal(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "eps"), [(64, 1e-6), (33, 0.5), (1, 1e-5)])
def test_rms_norm(size: int, eps: float, dtype: torch.dtype) -> None:
    norm = RMSNorm(size, eps)
    weight, x = _normal(size, seed=0, dtype=dtype), _normal(2, 50, size, seed=1, dtype=dtype)
    norm.weight.data = weight
    out = norm(x)
    assert out.dtype == dtype
    assert_right(out, lambda x, w: _rms_norm(x, w, eps), x, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_offset_rms_norm(dtype: torch.dtype) -> None:
    norm = OffsetRMSNorm(33, 0.5)
    norm.weight.data = weight = _normal(33, seed=0, dtype=dtype)
    x = _normal(2, 50, 33, seed=1, dtype=dtype)
    out = norm(x)
    assert out.dtype == dtype
    assert_right(out, lambda x, w: _rms_norm(x, 1 + w, 0.5), x, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_self_gated_rms_norm(dtype: torch.dtype) -> None:
    norm = SelfGatedRMSNorm(33, 0.5, 4)
    norm.norm.weight.data = weight = _normal(33, seed=0, dtype=dtype)
    norm.down.weight.data = down = _normal(4, 33, seed=1, dtype=dtype) / 10
    norm.up.weight.data = up = _normal(33, 4, seed=2, dtype=dtype) / 10
    x = _normal(2, 50, 33, seed=3, dtype=dtype)

    def right(x: Tensor, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        y = _rms_norm(x, weight, 0.5)
        inner = y @ down.t()
        return y * torch.sigmoid((inner * torch.sigmoid(inner)) @ up.t())

    out = norm(x)
    assert out.dtype == dtype
    assert_right(out, right, x, weight, down, up)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_offset_rms_norm_of_groups(dtype: torch.dtype) -> None:
    norm = GroupedOffsetRMSNorm(36, 0.5, 3)
    norm.weight.data = weight = _normal(36, seed=0, dtype=dtype)
    x = _normal(2, 50, 36, seed=1, dtype=dtype)
    out = norm(x)
    assert out.dtype == dtype

    def right(x: Tensor, w: Tensor) -> Tensor:
        parts = zip(x.chunk(3, dim=-1), w.chunk(3), strict=True)
        return torch.cat([_rms_norm(part, 1 + own, 0.5) for part, own in parts], dim=-1)

    assert_right(out, right, x, weight)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | float, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return weight * centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps) + bias


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [LayerNorm, UnbiasedLayerNorm, OffsetLayerNorm])
def test_layer_norms(kind: type[LayerNorm], dtype: torch.dtype) -> None:
    norm = kind(33, 0.5)
    norm.weight.data = weight = _normal(33, seed=0, dtype=dtype)
    bias = torch.zeros(33, dtype=dtype)
    if norm.bias is not None:
        norm.bias.data = bias = _normal(33, seed=2, dtype=dtype)
    x = _normal(2, 50, 33, seed=1, dtype=dtype)
    offset = 1 if kind is OffsetLayerNorm else 0
    out = norm(x)
    assert out.dtype == dtype
    assert_right(out, lambda x, w, b: _layer_norm(x, offset + w, b, 0.5), x, weight, bias)


def test_rms_norm_squares_in_float32() -> None:
    """A sum of 4,096 squares in bfloat16 would stop growing at 256."""
    norm = RMSNorm(4096, 1e-6)
    norm.weight.data = torch.ones(4096, dtype=torch.bfloat16)
    x = torch.full((1, 4096), 1.5, dtype=torch.bfloat16)
    assert norm(x).eq(1).all()


def test_rms_norm_takes_a_float32_stream_into_the_models_dtype() -> None:
    norm = RMSNorm(64, 1e-6)
    weight = _normal(64, seed=0, dtype=torch.bfloat16)
    norm.weight.data = weight
    x = _normal(50, 64, seed=1, dtype=torch.float32)
    out = norm(x)
    assert out.dtype == torch.bfloat16
    assert_small_rms_ratio(out, _rms_norm(x.double(), weight.double(), 1e-6))


def _gated(
    x: Tensor, z: Tensor, weight: Tensor, groups: int, before: bool, by: str = "silu"
) -> Tensor:
    gate = torch.sigmoid(z) * (z if by == "silu" else 1)
    y = x if before else x * gate
    parts = [
        part / torch.sqrt((part * part).mean(-1, keepdim=True) + 1e-5)
        for part in y.chunk(groups, dim=-1)
    ]
    y = torch.cat(parts, dim=-1) * weight
    return y * gate if before else y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("before", [True, False], ids=["before the gate", "after the gate"])
@pytest.mark.parametrize("groups", [1, 2, 5, 10])
def test_gated_rms_norm(groups: int, before: bool, dtype: torch.dtype) -> None:
    norm = GatedRMSNorm(60, 1e-5, groups, before)
    norm.weight.data = weight = _normal(60, seed=0, dtype=dtype)
    x, z = (_normal(50, 60, seed=seed, dtype=dtype) for seed in (1, 2))
    out = norm(x, z)
    assert out.dtype == dtype
    assert_right(out, lambda x, z, w: _gated(x, z, w, groups, before), x, z, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_rms_norm_with_a_sigmoid(dtype: torch.dtype) -> None:
    norm = GatedRMSNorm(60, 1e-5, 2, True, gate="sigmoid")
    norm.weight.data = weight = _normal(60, seed=0, dtype=dtype)
    x, z = (_normal(50, 60, seed=seed, dtype=dtype) for seed in (1, 2))
    out = norm(x, z)
    assert_right(out, lambda x, z, w: _gated(x, z, w, 2, True, "sigmoid"), x, z, weight)


def test_gated_rms_norm_gives_the_dtype_of_the_gate() -> None:
    """A scan's y may come in float32; the model goes on in its own dtype."""
    norm = GatedRMSNorm(60, 1e-5, 2, False)
    norm.weight.data = torch.ones(60, dtype=torch.bfloat16)
    x, z = torch.ones(3, 60), torch.ones(3, 60, dtype=torch.bfloat16)
    assert norm(x, z).dtype == torch.bfloat16
