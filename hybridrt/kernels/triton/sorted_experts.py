"""The kernels of experts on many tokens: tiles of assignments that were sorted by expert."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.gates import gated
from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit, kernel, wait_for_earlier


@kernel
@no_type_check
def to_inner(
    x,  # [tokens, hidden]
    gate_up,  # [experts, 2 * inner, hidden]; of "relu2" [experts, inner, hidden]
    bias,  # [experts, 2 * inner]; None: there is none
    values,  # [assignments, inner], contiguous, in the order of `order`
    order,  # [assignments]
    tiles,  # [3, most]
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
    most,
    alpha,
    limit,
    GATING: tl.constexpr,
    BY_TURNS: tl.constexpr,
    WHOLE: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`gate(x @ gate_up^T)` of a tile and some columns.

    GATING is that of `gates.gated`, or "relu2": the square of what is positive, without a gate.
    """
    wait_for_earlier()
    strides = (x_token, x_dim, w_expert, w_row, w_dim, b_expert, b_row)
    arrays = (x, gate_up, bias, values, order)
    expert, first, stop, block = _tile(
        tiles, inner if GATING == "relu2" else 2 * inner, most, BLOCK_N
    )
    if expert < 0:
        return
    if HALVES and stop - first <= BLOCK_M // 2:
        _to_inner(
            arrays, strides, expert, first, stop, block, hidden, inner, top_k, alpha, limit,
            GATING, BY_TURNS, WHOLE, BLOCK_M // 2, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    else:
        _to_inner(
            arrays, strides, expert, first, stop, block, hidden, inner, top_k, alpha, limit,
            GATING, BY_TURNS, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip


@kernel
@no_type_check
def from_inner(
    values,  # [assignments, inner], contiguous, in the order of `order`
    down,  # [experts, hidden, inner]
    bias,  # [experts, hidden]; None: there is none
    out,  # [assignments, hidden], contiguous
    order,  # [assignments]
    tiles,  # [3, most]
    w_expert,
    w_row,
    w_dim,
    b_expert,
    b_row,
    inner,
    hidden,
    most,
    WHOLE: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`values @ down^T` of a tile and some columns, each row where its assignment is."""
    wait_for_earlier()
    strides = (w_expert, w_row, w_dim, b_expert, b_row)
    arrays = (values, down, bias, out, order)
    expert, first, stop, block = _tile(tiles, hidden, most, BLOCK_N)
    if expert < 0:
        return
    if HALVES and stop - first <= BLOCK_M // 2:
        _from_inner(
            arrays, strides, expert, first, stop, block, inner, hidden,
            WHOLE, BLOCK_M // 2, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    else:
        _from_inner(
            arrays, strides, expert, first, stop, block, inner, hidden,
            WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip


@jit
@no_type_check
def _tile(tiles, columns, most, BLOCK: tl.constexpr):
    """The expert of this tile, its first place, that behind its last, and a block of columns.

    Programs of one tile are neighbours: those at work read few experts' weights.
    """
    blocks = tl.cdiv(columns, BLOCK)
    tile = tl.program_id(0) // blocks
    expert = tl.load(tiles + tile).to(tl.int64)
    first = tl.load(tiles + most + tile)
    stop = tl.load(tiles + 2 * most + tile)
    return expert, first, stop, tl.program_id(0) % blocks


@jit
@no_type_check
def _to_inner(
    arrays,
    strides,
    expert,
    first,
    stop,
    block,
    hidden,
    inner,
    top_k,
    alpha,
    limit,
    GATING: tl.constexpr,
    BY_TURNS: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    x, gate_up, bias, values, order = arrays
    x_token, x_dim, w_expert, w_row, w_dim, b_expert, b_row = strides
    place = first + tl.arange(0, BLOCK_M)
    # What isn't there is read where something is: loads without masks are faster.
    token = tl.load(order + tl.minimum(place, stop - 1)) // top_k
    row = block.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    if GATING == "relu2":
        row = tl.minimum(row, inner - 1)
    else:
        row = tl.minimum(row, 2 * inner - 1)
        if not BY_TURNS:
            # By turns all the same, so that a thread has both parts of what it gates.
            row = row % 2 * inner + row // 2
    total = _product(
        x + token.to(tl.int64) * x_token,
        gate_up + expert * w_expert + row * w_row,
        x_dim, w_dim, hidden, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if bias is not None:
        total += tl.load(bias + expert * b_expert + row * b_row).to(tl.float32)[None, :]
    if GATING == "relu2":
        column = block * BLOCK_N + tl.arange(0, BLOCK_N)
        result = tl.maximum(total, 0.0) * tl.maximum(total, 0.0)
    else:
        column = block * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        gate, up = tl.split(tl.reshape(total, (BLOCK_M, BLOCK_N // 2, 2)))
        result = gated(gate, up, alpha, limit, GATING)
    at = values + (place.to(tl.int64) * inner)[:, None] + column[None, :]
    mask = (place < stop)[:, None] & (column < inner)[None, :]
    tl.store(at, result.to(values.dtype.element_ty), mask=mask)


@jit
@no_type_check
def _from_inner(
    arrays,
    strides,
    expert,
    first,
    stop,
    block,
    inner,
    hidden,
    WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    values, down, bias, out, order = arrays
    w_expert, w_row, w_dim, b_expert, b_row = strides
    place = first + tl.arange(0, BLOCK_M)
    there = tl.minimum(place, stop - 1).to(tl.int64)
    column = block.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(column, hidden - 1)
    total = _product(
        values + there * inner,
        down + expert * w_expert + row * w_row,
        1, w_dim, inner, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if bias is not None:
        total += tl.load(bias + expert * b_expert + row * b_row).to(tl.float32)[None, :]
    assignment = tl.load(order + there).to(tl.int64)
    at = out + (assignment * hidden)[:, None] + column[None, :]
    mask = (place < stop)[:, None] & (column < hidden)[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=mask)


@jit
@no_type_check
def _product(
    given,  # [BLOCK_M]: where rows begin
    matrix,  # [BLOCK_N]: where rows begin
    given_dim,
    matrix_dim,
    size,
    WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`given @ matrix^T` in float32. WHOLE: all rows are of whole blocks."""
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    left = given[:, None] + (k * given_dim)[None, :]
    right = matrix[None, :] + (k * matrix_dim)[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, size, BLOCK_K):
        if WHOLE:
            a, b = tl.load(left), tl.load(right)
        else:
            is_k = k < size - first
            a = tl.load(left, mask=is_k[None, :], other=0.0)
            b = tl.load(right, mask=is_k[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=FLOAT32_DOT)
        left += BLOCK_K * given_dim
        right += BLOCK_K * matrix_dim
    return total
