"""What launches have in common."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.target_info import cuda_capability_geq

jit: Any = triton.jit
"""Of what kernels call. As anything, since types can't tell what a launch is given."""

FLOAT32_DOT = tl.constexpr("tf32x3")
"""Products of float32 on tensor cores in three parts: their error is that of float32."""

LOG2_E = tl.constexpr(1.4426950408889634)
"""Softmaxes are taken to base 2, as the hardware has only that."""

_COMPILED = tl.constexpr(not knobs.runtime.interpret)


@jit
@no_type_check
def wait_for_earlier():
    """Until the kernels before have ended, and what they wrote can be read; the next may start.

    Every program of a kernel calls it, before it reads what others have written or writes itself.
    """
    if _COMPILED and cuda_capability_geq(9):
        gdc_launch_dependents()
        gdc_wait()


@jit
@no_type_check
def wait_and_hold_back():
    """`wait_for_earlier` in a kernel behind which the next one doesn't start before that.

    So that one can read before its own wait what those before this one wrote.
    """
    if _COMPILED and cuda_capability_geq(9):
        gdc_wait()
        gdc_launch_dependents()


@cache
def _starts_early() -> bool:
    """Whether kernels are set up, and may ask for weights, while those before them are at work.

    NVIDIA's programmatic dependent launch, from compute capability 9.0 on.
    """
    if not _COMPILED.value or torch.version.cuda is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (9, 0)


class _Kernel:
    """What is launched by `kernel[grid](...)`, and then may start before its time has come."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        if not _starts_early():
            return self.function[grid]
        # As `function[grid]` does it, with one call less.
        return partial(self.function.run, grid=grid, warmup=False, launch_pdl=True)

    def in_turn(self, grid: Any) -> Callable[..., Any]:
        """To be launched once those before it have ended.

        For few programs that run long: those that start early find processors as the others leave
        them, so that some may have to share one. (A guess by the scan's time on an H200.)
        """
        return self.function[grid]


def kernel(function: Any = None, **options: Any) -> Any:
    """`jit` of what is launched. Its first statement is `wait_for_earlier()`."""
    if function is None:
        return partial(kernel, **options)
    return _Kernel(triton.jit(function, **options))


def block_of(size: int, least: int = 16) -> int:
    """The power of two that holds so many; a product's sides are at least 16."""
    return max(least, next_power_of_2(size))


def next_power_of_2(number: int) -> int:
    """The smallest that is no less. As `cdiv`, here, since Triton's own take a microsecond each."""
    return 1 << max(0, number - 1).bit_length()


def cdiv(size: int, block: int) -> int:
    """Blocks that hold so many."""
    return -(-size // block)


@cache
def num_processors(device: torch.device) -> int:
    """Programs that run at once; a few in the interpreter, so that splits come up there."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of it that a program can have; those of an H100 in the interpreter."""
    if device.type != "cuda":
        return 227 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def row_strides(tensor: torch.Tensor | None, dims: int) -> tuple[int, ...]:
    """The strides of a tensor, or as many zeros for one that isn't there."""
    return (0,) * dims if tensor is None else tensor.stride()


def three_dims(x: torch.Tensor) -> torch.Tensor:
    """The same rows, copied only where there are more dimensions than tokens and heads."""
    while x.dim() < 3:
        x = x.unsqueeze(0)
    return x.flatten(0, -3)
