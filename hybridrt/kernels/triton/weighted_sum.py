"""The sum of what a token's experts give, by their weights."""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor

from hybridrt.kernels.reference.moe import FEW_TOKENS
from hybridrt.kernels.triton.launch import block_of, cdiv, kernel, row_strides, wait_for_earlier

COLUMNS = (256, 64)  # that a program sums, and a warp, of few tokens: all are on their way at once
COLUMNS_OF_MANY = (1024, 128)  # the same, of many tokens


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
    most, of_warp = COLUMNS if tokens <= FEW_TOKENS else COLUMNS_OF_MANY
    block = min(block_of(hidden), most)
    _sum[(tokens, cdiv(hidden, block))](
        values,
        weights,
        places,
        out,
        *values.stride(),
        *weights.stride(),
        *row_strides(places, 2),
        hidden,
        TOP_K=top_k,
        BLOCK=block,
        num_warps=max(1, block // of_warp),
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
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    fits = column < hidden
    total = tl.zeros([BLOCK], tl.float32)
    # A row after the other for each thread, but all of them on their way at once.
    for choice in tl.static_range(TOP_K):
        row = token * TOP_K + choice
        if places is not None:
            row = tl.load(places + token * p_token + choice * p_choice).to(tl.int64)
        weight = tl.load(weights + token * w_token + choice * w_choice).to(tl.float32)
        at = values + row * v_row + column * v_dim
        total += weight * tl.load(at, mask=fits, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + column, total.to(out.dtype.element_ty), mask=fits)
