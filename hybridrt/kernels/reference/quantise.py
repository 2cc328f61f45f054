"""Quantisation in plain torch."""

import torch
from jaxtyping import Float, Float8e4m3fn, Float32, Int8, Shaped
from torch import Tensor
from torch.nn.functional import pad

E4M3_LARGEST = 448.0
INT8_LARGEST = 127.0
GROUP = 128  # channels that share a scale
# A smaller scale than this has fewer bits than a float32 should.
_LEAST_SCALE = torch.finfo(torch.float32).tiny


def quantise_e4m3(
    x: Float[Tensor, "tokens heads dim"], scale: Float32[Tensor, " heads"]
) -> Float8e4m3fn[Tensor, "tokens heads dim"]:
    """See `hybridrt.kernels.quantise`."""
    return _e4m3(x.float() / scale[:, None])


def quantise_e4m3_groups(
    x: Float[Tensor, "*tokens dim"],
) -> tuple[Float8e4m3fn[Tensor, "*tokens dim"], Float32[Tensor, "*tokens groups"]]:
    """See `hybridrt.kernels.quantise`."""
    dim = x.shape[-1]
    groups = pad(x.float(), (0, -dim % GROUP)).unflatten(-1, (-1, GROUP))
    scale = _scale(groups, E4M3_LARGEST)
    return _e4m3(groups / scale[..., None]).flatten(-2)[..., :dim], scale


def quantise_int8(
    x: Float[Tensor, "*tokens dim"],
) -> tuple[Int8[Tensor, "*tokens dim"], Float32[Tensor, "*tokens"]]:
    """See `hybridrt.kernels.quantise`."""
    x = x.float()
    scale = _scale(x, INT8_LARGEST)
    steps = (x / scale[..., None]).round_().clamp_(-INT8_LARGEST, INT8_LARGEST)
    return steps.to(torch.int8), scale


def dequantise(
    values: Shaped[Tensor, "*shape"], scale: Float32[Tensor, "..."], dtype: torch.dtype
) -> Float[Tensor, "*shape"]:
    """See `hybridrt.kernels.quantise`."""
    return (values.float() * scale).to(dtype)


def dequantise_groups(
    values: Shaped[Tensor, "*tokens dim"],
    scale: Float32[Tensor, "*tokens groups"],
    dtype: torch.dtype,
) -> Float[Tensor, "*tokens dim"]:
    """See `hybridrt.kernels.quantise`."""
    dim = values.shape[-1]
    return dequantise(values, scale.repeat_interleave(GROUP, dim=-1)[..., :dim], dtype)


def _scale(x: Float32[Tensor, "*tokens dim"], largest: float) -> Float32[Tensor, "*tokens"]:
    return (x.abs().amax(-1) / largest).clamp_(min=_LEAST_SCALE)


def _e4m3(x: Float32[Tensor, "*shape"]) -> Float8e4m3fn[Tensor, "*shape"]:
    return x.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)
