"""A linear layer on one token in Triton: its weight is read once, at the rate of the memory."""

from typing import no_type_check

import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.triton.launch import cdiv, jit, kernel, wait_for_earlier

# Of a program, of 128 threads. Many programs at a time keep the memory busy.
OUTPUTS, INPUTS = 2, 1024


def takes(x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"]) -> bool:
    """Whether `one_row_linear` can have them: one token, and rows of a weight without gaps."""
    return x.numel() == x.shape[-1] and weight.stride(1) == 1 and x.dtype == weight.dtype


def one_row_linear(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*batch outputs"]:
    """See `hybridrt.kernels.linear`; one token."""
    outputs, inputs = weight.shape
    out = x.new_empty(*x.shape[:-1], outputs)
    _multiply[(cdiv(outputs, OUTPUTS),)](
        x,
        weight,
        bias,
        out,
        x.stride(-1),
        weight.stride(0),
        outputs,
        inputs,
        OUTPUTS=OUTPUTS,
        INPUTS=INPUTS,
    )
    return out


@kernel
@no_type_check
def _multiply(
    x,  # [inputs]
    weight,  # [outputs, inputs], whose rows have no gaps
    bias,  # [outputs]; None: there is none
    out,  # [outputs] without gaps
    x_stride,
    weight_row,
    outputs,
    inputs,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    i = tl.arange(0, INPUTS)
    fits = row < outputs
    of_row = weight + row.to(tl.int64)[:, None] * weight_row + i[None, :]
    there = fits[:, None] & (i < inputs)[None, :]
    # No kernel before this one writes weights, so the first ones come while those are at work.
    # Nobody reads a weight again before the next step, and all read x.
    part = tl.load(of_row, mask=there, other=0.0, eviction_policy="evict_first")
    wait_for_earlier()
    result = multiply_rows(x, x_stride, of_row, part, fits, inputs, OUTPUTS, INPUTS)
    if bias is not None:
        result += tl.load(bias + row, mask=fits, other=0.0).to(tl.float32)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=fits)


@jit
@no_type_check
def multiply_rows(
    x,  # [inputs]
    x_stride,
    of_row,  # [OUTPUTS, INPUTS]: where the first numbers of each row are
    part,  # and these numbers
    fits,  # [OUTPUTS]
    inputs,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    weight_stride=1,
    IN_ORDER: tl.constexpr = False,
):
    """Some rows of a weight times x, by parts; the next one is asked for while one is added.

    IN_ORDER: even where the assembler would ask for it later. On an H200 products of experts are
    faster by it, those of more rows are not.
    """
    i = tl.arange(0, INPUTS)
    total = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for first in range(0, inputs, INPUTS):
        following = first + INPUTS
        there = fits[:, None] & (following + i < inputs)[None, :]
        at = of_row + following * weight_stride
        next_part = tl.load(at, mask=there, other=0.0, eviction_policy="evict_first")
        if IN_ORDER:
            # The assembler moves no load over a barrier.
            tl.debug_barrier()
        value = tl.load(x + (first + i) * x_stride, mask=first + i < inputs, other=0.0)
        total += part.to(tl.float32) * value.to(tl.float32)[None, :]
        part = next_part
    return tl.sum(total, 1)
