"""Weights of 8 and of 4 bits in plain torch."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor


def quantise_weight(
    weight: Float[Tensor, "outputs inputs"], bits: int, group: int
) -> tuple[Tensor, Tensor]:
    """See `hybridrt.kernels.quantised_linear.quantise_weight`."""
    groups = weight.float().unflatten(1, (-1, group))
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0]
    # The largest becomes the end of the range that reaches further, which is the negative one.
    scales = (largest / -(2 ** (bits - 1))).bfloat16()
    divisor = torch.where(scales == 0, 1, scales.float())[..., None]
    levels = (groups / divisor).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if bits == 8:
        return levels.flatten(1).to(torch.int8).view(torch.uint8), scales
    low, high = (levels + 8).to(torch.uint8).chunk(2, dim=-1)
    return (low | high << 4).flatten(1), scales


def dequantise_weight(
    values: UInt8[Tensor, "outputs packed"], scales: Float[Tensor, "outputs groups"], bits: int
) -> Float[Tensor, "outputs inputs"]:
    """The weight that these stand for, in the scales' dtype."""
    groups = values.unflatten(1, (scales.shape[1], -1))
    if bits == 8:
        levels = groups.view(torch.int8).float()
    else:
        levels = torch.cat([groups & 15, groups >> 4], dim=-1).float() - 8
    return (levels * scales.float()[..., None]).flatten(1).to(scales.dtype)
