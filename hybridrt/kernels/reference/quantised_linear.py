"""Weights of 8 and of 4 bits in plain torch."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import pad


def quantise_weight(
    weight: Float[Tensor, "outputs inputs"], bits: int, group: int, block: int
) -> tuple[Tensor, Tensor]:
    """See `hybridrt.kernels.quantised_linear.quantise_weight`."""
    rows = pad(weight.float(), (0, 0, 0, -len(weight) % block))
    groups = rows.unflatten(1, (-1, group)).unflatten(0, (-1, block)).transpose(1, 2)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0]
    # The largest becomes the end of the range that reaches further, which is the negative one.
    scales = (largest / -(2 ** (bits - 1))).bfloat16()
    divisor = torch.where(scales == 0, 1, scales.float())[..., None]
    levels = (groups / divisor).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if bits == 8:
        pairs = levels.to(torch.int8).unflatten(-1, (-1, 2)).transpose(2, 3)
        return pairs.flatten(2).contiguous().view(torch.uint8), scales.contiguous()
    pairs = (levels + 8).to(torch.uint8).unflatten(-1, (-1, 4, 2))
    nibbles = pairs.transpose(-1, -2).flatten(-2)  # of eight inputs the even ones, then the odd
    values = nibbles[..., ::2] | nibbles[..., 1::2] << 4
    return values.transpose(2, 3).flatten(2).contiguous(), scales.contiguous()


def dequantise_weight(
    values: UInt8[Tensor, "blocks groups group_bytes"],
    scales: Float[Tensor, "blocks groups block"],
    bits: int,
    outputs: int,
) -> Float[Tensor, "outputs inputs"]:
    """The weight that these stand for, in the scales' dtype."""
    block = scales.shape[-1]
    if bits == 8:
        pairs = values.view(torch.int8).unflatten(-1, (-1, block, 2)).transpose(2, 3)
        levels = pairs.flatten(3).float()
    else:
        packed = values.unflatten(-1, (-1, block, 4)).transpose(2, 3)
        nibbles = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
        levels = nibbles.unflatten(-1, (2, 4)).transpose(-1, -2).flatten(3).float() - 8
    groups = (levels * scales.float()[..., None]).transpose(1, 2)
    return groups.flatten(0, 1).flatten(1)[:outputs].to(scales.dtype)
