"""Some assignments of one expert times a tile of its matrix: what kernels of experts share."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.gates import gated
from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit


@jit
@no_type_check
def tile_to_inner(
    x,  # [tokens, hidden]
    gate_up,  # [experts, 2 * inner, hidden]; of "relu2" [experts, inner, hidden]
    bias,  # [experts, 2 * inner]; None: there is none
    out,  # [assignments, inner], contiguous
    expert,
    assignment,  # [BLOCK_M]
    live,  # [BLOCK_M]
    column,  # [BLOCK_N]
    strides,  # of x, gate_up and bias
    hidden,
    inner,
    top_k,
    alpha,
    limit,
    GATING: tl.constexpr,
    BY_TURNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`gate(x @ gate_up^T)`: both halves at once, so that nothing is written in between.

    GATING is that of `gates.gated`, or "relu2": the square of what is positive, without a gate.
    """
    x_token, x_dim, w_expert, w_row, w_dim, b_expert, b_row = strides
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
        gate = tl.dot(given, of_gate, gate, input_precision=FLOAT32_DOT)
        if GATING != "relu2":
            of_up = tl.load(at + (up_row * w_row)[None, :], mask=there, other=0.0)
            up = tl.dot(given, of_up, up, input_precision=FLOAT32_DOT)
    if bias is not None:
        at = bias + expert * b_expert
        gate += tl.load(at + gate_row * b_row, mask=fits, other=0.0).to(tl.float32)[None, :]
        up += tl.load(at + up_row * b_row, mask=fits, other=0.0).to(tl.float32)[None, :]
    if GATING == "relu2":
        result = tl.maximum(gate, 0.0) * tl.maximum(gate, 0.0)
    else:
        result = gated(gate, up, alpha, limit, GATING)
    at = out + (assignment * inner)[:, None] + column[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=live[:, None] & fits[None, :])


@jit
@no_type_check
def tile_from_inner(
    values,  # [assignments, inner], contiguous
    down,  # [experts, hidden, inner]
    bias,  # [experts, hidden]; None: there is none
    out,  # float32 [assignments, hidden], contiguous
    expert,
    assignment,  # [BLOCK_M]
    live,  # [BLOCK_M]
    column,  # [BLOCK_N]
    strides,  # of down and bias
    inner,
    hidden,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`values @ down^T` of each assignment, in float32."""
    w_expert, w_row, w_dim, b_expert, b_row = strides
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
    if bias is not None:
        at = bias + expert * b_expert + column * b_row
        total += tl.load(at, mask=fits, other=0.0).to(tl.float32)[None, :]
    at = out + (assignment * hidden)[:, None] + column[None, :]
    tl.store(at, total, mask=live[:, None] & fits[None, :])
