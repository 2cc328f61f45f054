"""The kernels of moe_experts: a tile of one expert's assignments times a tile of its matrix."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.gates import gated
from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit


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


@jit
@no_type_check
def to_inner(
    x,  # [tokens, hidden]
    gate_up,  # [EXPERTS, 2 * inner, hidden]
    bias,  # [EXPERTS, 2 * inner]
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
    HAS_BIAS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`gate(x @ gate_up^T)`: both halves at once, so that nothing is written in between."""
    expert, assignment, live = _assignments(order, ends, tile_ends, EXPERTS, BLOCK_E, BLOCK_M)
    if expert >= EXPERTS:
        return
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    fits = column < inner
    if BY_TURNS:
        gate_row, up_row = 2 * column, 2 * column + 1
    else:
        gate_row, up_row = column, inner + column
    source = x + (assignment // top_k * x_token)[:, None]
    matrix = gate_up + expert * w_expert
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, hidden, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K).to(tl.int64)
        seen = live[:, None] & (k < hidden)[None, :]
        given = tl.load(source + (k * x_dim)[None, :], mask=seen, other=0.0)
        at = matrix + (k * w_dim)[:, None]
        there = (k < hidden)[:, None] & fits[None, :]
        of_gate = tl.load(at + (gate_row * w_row)[None, :], mask=there, other=0.0)
        of_up = tl.load(at + (up_row * w_row)[None, :], mask=there, other=0.0)
        gate = tl.dot(given, of_gate, gate, input_precision=FLOAT32_DOT)
        up = tl.dot(given, of_up, up, input_precision=FLOAT32_DOT)
    if HAS_BIAS:
        at = bias + expert * b_expert
        gate += tl.load(at + gate_row * b_row, mask=fits, other=0.0).to(tl.float32)[None, :]
        up += tl.load(at + up_row * b_row, mask=fits, other=0.0).to(tl.float32)[None, :]
    result = gated(gate, up, alpha, limit, GATING).to(out.dtype.element_ty)
    at = out + (assignment * inner)[:, None] + column[None, :]
    tl.store(at, result, mask=live[:, None] & fits[None, :])


@jit
@no_type_check
def from_inner(
    values,  # [assignments, inner], contiguous
    down,  # [EXPERTS, hidden, inner]
    bias,  # [EXPERTS, hidden]
    weights,  # [assignments]
    out,  # [assignments, hidden], contiguous
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
    HAS_BIAS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`weight * (values @ down^T)` of each assignment, in float32."""
    expert, assignment, live = _assignments(order, ends, tile_ends, EXPERTS, BLOCK_E, BLOCK_M)
    if expert >= EXPERTS:
        return
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    fits = column < hidden
    matrix = down + expert * w_expert + (column * w_row)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, inner, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K).to(tl.int64)
        seen = live[:, None] & (k < inner)[None, :]
        given = tl.load(values + (assignment * inner)[:, None] + k[None, :], mask=seen, other=0.0)
        there = (k < inner)[:, None] & fits[None, :]
        factor = tl.load(matrix + (k * w_dim)[:, None], mask=there, other=0.0)
        total = tl.dot(given, factor, total, input_precision=FLOAT32_DOT)
    if HAS_BIAS:
        at = bias + expert * b_expert + column * b_row
        total += tl.load(at, mask=fits, other=0.0).to(tl.float32)[None, :]
    weight = tl.load(weights + assignment, mask=live, other=0.0).to(tl.float32)
    at = out + (assignment * hidden)[:, None] + column[None, :]
    tl.store(at, total * weight[:, None], mask=live[:, None] & fits[None, :])
