"""The kernels of experts on many tokens: tiles of assignments that were sorted by expert."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.expert_tile import tile_from_inner, tile_to_inner
from hybridrt.kernels.triton.launch import jit, kernel, wait_for_earlier


@jit
@no_type_check
def _assignments(
    order, ends, tile_ends, EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr
):
    """The expert of this tile, its assignments, and which of them there are.

    A tile behind the last has the expert EXPERTS.
    """
    tile = tl.program_id(0)
    experts = tl.arange(0, BLOCK_E)
    # Behind the last expert stand tiles without end: none of them is before this one.
    last = tl.load(tile_ends + experts, mask=experts < EXPERTS, other=1 << 62)
    expert = tl.sum((last <= tile).to(tl.int64), 0)
    begin = tl.max(tl.where(last <= tile, last, 0), 0)
    is_before = experts < expert
    start = tl.max(tl.load(ends + experts, mask=is_before & (experts < EXPERTS), other=0), 0)
    stop = tl.load(ends + tl.minimum(expert, EXPERTS - 1))
    at = start + (tile - begin) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = at < stop
    return expert, tl.load(order + at, mask=live, other=0), live


@kernel
@no_type_check
def to_inner(
    x,  # [tokens, hidden]
    gate_up,  # [EXPERTS, 2 * inner, hidden]
    bias,  # [EXPERTS, 2 * inner]; None: there is none
    out,  # [assignments, inner], contiguous
    order,  # [assignments]
    ends,  # [EXPERTS]
    tile_ends,  # [EXPERTS]
    x_token,
    x_dim,
    w_expert,
    w_row,
    w_dim,
    b_expert,
    b_row,
    hidden,
    inner,
    top_k,
    alpha,
    limit,
    GATING: tl.constexpr,
    BY_TURNS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`tile_to_inner` of a tile and some columns."""
    wait_for_earlier()
    expert, assignment, live = _assignments(order, ends, tile_ends, EXPERTS, BLOCK_E, BLOCK_M)
    if expert >= EXPERTS:
        return
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    strides = (x_token, x_dim, w_expert, w_row, w_dim, b_expert, b_row)
    tile_to_inner(
        x, gate_up, bias, out, expert, assignment, live, column, strides, hidden, inner, top_k,
        alpha, limit, GATING, BY_TURNS, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip


@kernel
@no_type_check
def from_inner(
    values,  # [assignments, inner], contiguous
    down,  # [EXPERTS, hidden, inner]
    bias,  # [EXPERTS, hidden]; None: there is none
    out,  # float32 [assignments, hidden], contiguous
    order,  # [assignments]
    ends,  # [EXPERTS]
    tile_ends,  # [EXPERTS]
    w_expert,
    w_row,
    w_dim,
    b_expert,
    b_row,
    inner,
    hidden,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`tile_from_inner` of a tile and some columns."""
    wait_for_earlier()
    expert, assignment, live = _assignments(order, ends, tile_ends, EXPERTS, BLOCK_E, BLOCK_M)
    if expert >= EXPERTS:
        return
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    strides = (w_expert, w_row, w_dim, b_expert, b_row)
    tile_from_inner(
        values, down, bias, out, expert, assignment, live, column, strides, inner, hidden,
        BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
