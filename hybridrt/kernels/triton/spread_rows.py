"""Tokens beside those of the same expert."""

from typing import NamedTuple, no_type_check

import triton.language as tl
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from hybridrt.kernels.triton.launch import block_of, cdiv, kernel, wait_for_earlier
from hybridrt.kernels.triton.sort_by_expert import sort_by_expert

ELEMENTS = 2048  # that a program copies for each choice
FOR_A_WARP = 256  # of them: 16 bytes for each of its threads, or twice that


class SpreadRows(NamedTuple):
    """A row for each assignment, sorted by expert.

    Attributes:
        rows: the token's row for each assignment.
        expert_ids: whose they are.
        places: where in `rows` an assignment is.
        ends: behind the last row of each expert.
    """

    rows: Float[Tensor, "assignments hidden"]
    expert_ids: Int32[Tensor, " assignments"]
    places: Int32[Tensor, "tokens top_k"]
    ends: Int32[Tensor, " experts"]


def spread_rows(
    x: Float[Tensor, "tokens hidden"], expert_ids: Int64[Tensor, "tokens top_k"], experts: int
) -> SpreadRows:
    """Each token's row once for each of its experts; an expert's rows are in the tokens' order."""
    (tokens, hidden), top_k = x.shape, expert_ids.shape[1]
    sort = sort_by_expert(expert_ids, experts)
    rows = x.new_empty(expert_ids.numel(), hidden)
    if rows.numel():
        block = min(block_of(hidden), ELEMENTS)
        _spread[(tokens, cdiv(hidden, block))](
            x,
            sort.places,
            rows,
            *x.stride(),
            hidden,
            TOP_K=top_k,
            BLOCK=block,
            num_warps=max(1, block // FOR_A_WARP),
        )
    return SpreadRows(rows, sort.expert_ids, sort.places, sort.ends)


@kernel
@no_type_check
def _spread(
    x,  # [tokens, hidden]
    places,  # [tokens, TOP_K], contiguous
    rows,  # [assignments, hidden], contiguous
    x_token,
    x_dim,
    hidden,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    fits = column < hidden
    row = tl.load(x + token * x_token + column * x_dim, mask=fits, other=0.0)
    for choice in tl.static_range(TOP_K):
        place = tl.load(places + token * TOP_K + choice).to(tl.int64)
        tl.store(rows + place * hidden + column, row, mask=fits)
