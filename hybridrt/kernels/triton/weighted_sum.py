"""The sum of what a token's experts give, by their weights."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor

from hybridrt.kernels.reference.moe import FEW_TOKENS
from hybridrt.kernels.triton.launch import block_of, kernel, row_strides, wait_for_earlier

ELEMENTS = 4096  # that a program reads at a time, of few tokens
ELEMENTS_OF_MANY = 8192  # the same, of many tokens


def weighted_sum(
    values: Float[Tensor, "assignments hidden"],
    weights: Float[Tensor, "tokens top_k"],
    places: Int32[Tensor, "tokens top_k"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "tokens hidden"]:
    """`sum_j weights[t, j] * values[places[t, j]]`, in float32 before it is rounded to `dtype`.

    Without places the assignments stand one behind the other.
    """
    (tokens, top_k), hidden = weights.shape, values.shape[1]
    out = torch.empty(tokens, hidden, dtype=dtype, device=values.device)
    if out.numel() == 0:
        return out
    rows = triton.next_power_of_2(top_k)
    elements = ELEMENTS if tokens <= FEW_TOKENS else ELEMENTS_OF_MANY
    block = min(block_of(hidden), max(16, elements // rows))
    _sum[(tokens, triton.cdiv(hidden, block))](
        values,
        weights,
        places,
        out,
        *values.stride(),
        *weights.stride(),
        *row_strides(places, 2),
        hidden,
        TOP_K=top_k,
        BLOCK_J=rows,
        BLOCK_H=block,
        num_warps=4,
    )
    return out


@kernel
@no_type_check
def _sum(
    values,  # [assignments, hidden]
    weights,  # [tokens, TOP_K]
    places,  # [tokens, TOP_K]; None: one behind the other
    out,  # [tokens, hidden], contiguous
    v_row,
    v_dim,
    w_token,
    w_choice,
    p_token,
    p_choice,
    hidden,
    TOP_K: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    choice = tl.arange(0, BLOCK_J)
    column = tl.program_id(1).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)
    is_choice, fits = choice < TOP_K, column < hidden
    row = token * TOP_K + choice
    if places is not None:
        at = places + token * p_token + choice * p_choice
        row = tl.load(at, mask=is_choice, other=0).to(tl.int64)
    at = weights + token * w_token + choice * w_choice
    weight = tl.load(at, mask=is_choice, other=0.0).to(tl.float32)
    at = values + (row * v_row)[:, None] + (column * v_dim)[None, :]
    value = tl.load(at, mask=is_choice[:, None] & fits[None, :], other=0.0).to(tl.float32)
    total = tl.sum(value * weight[:, None], 0)
    tl.store(out + token * hidden + column, total.to(out.dtype.element_ty), mask=fits)
