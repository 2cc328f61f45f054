"""What launches have in common."""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

jit: Any = triton.jit
"""As anything, since types can't tell how many arguments the strides of a launch are."""

FLOAT32_DOT = tl.constexpr("tf32x3")
"""Products of float32 on tensor cores in three parts: their error is that of float32."""

LOG2_E = tl.constexpr(1.4426950408889634)
"""Softmaxes are taken to base 2, as the hardware has only that."""


def block_of(size: int, least: int = 16) -> int:
    """The power of two that holds so many; a product's sides are at least 16."""
    return max(least, triton.next_power_of_2(size))


@cache
def num_processors(device: torch.device) -> int:
    """Programs that run at once; a few in the interpreter, so that splits come up there."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def row_strides(tensor: torch.Tensor | None, dims: int) -> tuple[int, ...]:
    """The strides of a tensor, or as many zeros for one that isn't there."""
    return (0,) * dims if tensor is None else tensor.stride()


def three_dims(x: torch.Tensor) -> torch.Tensor:
    """The same rows, copied only where there are more dimensions than tokens and heads."""
    while x.dim() < 3:
        x = x.unsqueeze(0)
    return x.flatten(0, -3)
