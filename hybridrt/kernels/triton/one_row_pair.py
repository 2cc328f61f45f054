"""Two linear layers on the same token in Triton, at once: the smaller one alone takes as long."""

from collections.abc import Sequence
from typing import no_type_check

import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.triton.launch import cdiv, kernel, wait_for_earlier
from hybridrt.kernels.triton.one_row import INPUTS, OUTPUTS, multiply_rows


def one_row_pair(
    x: Float[Tensor, "*batch inputs"],
    weights: Sequence[Float[Tensor, "_ inputs"]],
    biases: Sequence[Float[Tensor, " _"] | None],
) -> tuple[Float[Tensor, "*batch _"], Float[Tensor, "*batch _"]]:
    """See `hybridrt.kernels.linear.linear_each`; one token, and two weights it can have."""
    (weight, more_weight), (bias, more_bias) = weights, biases
    out, more_out = (x.new_empty(*x.shape[:-1], len(rows)) for rows in weights)
    parts, more_parts = (cdiv(len(rows), OUTPUTS) for rows in weights)
    _multiply_both[(parts + more_parts,)](
        x,
        weight,
        bias,
        out,
        more_weight,
        more_bias,
        more_out,
        x.stride(-1),
        weight.stride(0),
        more_weight.stride(0),
        len(weight),
        len(more_weight),
        parts,
        x.shape[-1],
        OUTPUTS=OUTPUTS,
        INPUTS=INPUTS,
    )
    return out, more_out


@kernel
@no_type_check
def _multiply_both(
    x,  # [inputs]
    weight,  # [outputs, inputs], whose rows have no gaps
    bias,  # [outputs]; None: there is none
    out,  # [outputs] without gaps
    more_weight,  # the same, of another layer
    more_bias,
    more_out,
    x_stride,
    weight_row,
    more_weight_row,
    outputs,
    more_outputs,
    parts,  # of the first layer's outputs: programs behind them have the other's
    inputs,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    part = tl.program_id(0)
    is_first = part < parts
    # Numbers that are 1 are constants, which the other layer's can't take the place of.
    weight_row, outputs = tl.cast(weight_row, tl.int32), tl.cast(outputs, tl.int32)
    if not is_first:
        part -= parts
        weight, weight_row, outputs, out = more_weight, more_weight_row, more_outputs, more_out
    row = part * OUTPUTS + tl.arange(0, OUTPUTS)
    i = tl.arange(0, INPUTS)
    fits = row < outputs
    of_row = weight + row.to(tl.int64)[:, None] * weight_row + i[None, :]
    there = fits[:, None] & (i < inputs)[None, :]
    # Before the wait, and read once, as in one_row.py.
    first = tl.load(of_row, mask=there, other=0.0, eviction_policy="evict_first")
    wait_for_earlier()
    result = multiply_rows(x, x_stride, of_row, first, fits, inputs, OUTPUTS, INPUTS)
    if is_first:
        if bias is not None:
            result += tl.load(bias + row, mask=fits, other=0.0).to(tl.float32)
    elif more_bias is not None:
        result += tl.load(more_bias + row, mask=fits, other=0.0).to(tl.float32)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=fits)
