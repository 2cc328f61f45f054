"""Weights of 8 and of 4 bits in plain torch."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import pad


def quantise_weight(
    weight: Float[Tensor, "outputs inputs"], bits: int, group: int, together: int
) -> tuple[Tensor, Tensor]:
    """See `hybridrt.kernels.quantised_linear.quantise_weight`."""
    rows = pad(weight.float(), (0, 0, 0, -len(weight) % together))
    groups = rows.unflatten(1, (-1, group)).unflatten(0, (-1, together)).transpose(1, 2)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0]
    # The largest becomes the end of the range that reaches further, which is the negative one.
    scales = (largest / -(2 ** (bits - 1))).bfloat16()
    divisor = torch.where(scales == 0, 1, scales.float())[..., None]
    levels = (groups / divisor).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if bits == 8:
        return levels.to(torch.int8).contiguous().view(torch.uint8), scales.contiguous()
    low, high = (levels + 8).to(torch.uint8).chunk(2, dim=-1)
    return (low | high << 4).contiguous(), scales.contiguous()


def dequantise_weight(
    values: UInt8[Tensor, "blocks groups together group_bytes"],
    scales: Float[Tensor, "blocks groups together"],
    bits: int,
    outputs: int,
) -> Float[Tensor, "outputs inputs"]:
    """The weight that these stand for, in the scales' dtype."""
    if bits == 8:
        levels = values.view(torch.int8).float()
    else:
        levels = torch.cat([values & 15, values >> 4], dim=-1).float() - 8
    groups = (levels * scales.float()[..., None]).transpose(1, 2)
    return groups.flatten(0, 1).flatten(1)[:outputs].to(scales.dtype)
