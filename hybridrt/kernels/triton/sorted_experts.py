"""Experts' matrices times many tokens: tiles of assignments that were sorted by expert."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.gates import gated
from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit, kernel, wait_for_earlier


@kernel
@no_type_check
def multiply_tiles(
    given,  # [tokens, size] or [assignments, size]
    matrices,  # [experts, columns, size]
    bias,  # [experts, columns]; None: there is none
    out,  # [assignments, columns], contiguous; of a gate half as many columns
    order,  # [assignments]
    tiles,  # [3, most]
    g_row,
    g_dim,
    m_expert,
    m_row,
    m_dim,
    b_expert,
    b_row,
    size,
    columns,
    top_k,
    most,
    blocks,
    alpha,
    limit,
    GATING: tl.constexpr,
    BY_TURNS: tl.constexpr,
    OF_TOKENS: tl.constexpr,
    WHOLE: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A tile times so many blocks of columns of its expert's matrix, and what GATING says.

    GATING is that of `gates.gated`, "relu2", the square of what is positive, or None. OF_TOKENS:
    rows of tokens are given and those of `out` stand in the order of `order`; otherwise those that
    are given do, and each goes to where its assignment is. WHOLE: rows are of whole blocks.
    """
    wait_for_earlier()
    # Programs of one tile are neighbours: those at work read few experts' weights.
    programs = tl.cdiv(columns, BLOCK_N * blocks)
    tile = tl.program_id(0) // programs
    expert = tl.load(tiles + tile).to(tl.int64)
    if expert < 0:
        return
    first = tl.load(tiles + most + tile)
    stop = tl.load(tiles + 2 * most + tile)
    block = tl.program_id(0) % programs * blocks
    arrays = (given, matrices, bias, out, order)
    strides = (g_row, g_dim, m_expert, m_row, m_dim, b_expert, b_row)
    if HALVES and stop - first <= BLOCK_M // 2:
        _multiply(
            arrays, strides, expert, first, stop, block, size, columns, top_k, blocks, alpha, limit,
            GATING, BY_TURNS, OF_TOKENS, WHOLE, BLOCK_M // 2, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    else:
        _multiply(
            arrays, strides, expert, first, stop, block, size, columns, top_k, blocks, alpha, limit,
            GATING, BY_TURNS, OF_TOKENS, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip


@jit
@no_type_check
def _multiply(
    arrays,
    strides,
    expert,
    first,
    stop,
    block,
    size,
    columns,
    top_k,
    blocks,
    alpha,
    limit,
    GATING: tl.constexpr,
    BY_TURNS: tl.constexpr,
    OF_TOKENS: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One loop over all blocks: weights of the next are on their way while one is stored."""
    given, matrices, bias, out, order = arrays
    g_row, g_dim, m_expert, m_row, m_dim, b_expert, b_row = strides
    HALVED: tl.constexpr = GATING is not None and GATING != "relu2"
    place = (first + tl.arange(0, BLOCK_M)).to(tl.int64)
    # What isn't there is read where something is: loads without masks are faster.
    there = tl.minimum(place, stop - 1)
    assignment = tl.load(order + there)
    source = (assignment // top_k).to(tl.int64) if OF_TOKENS else there
    target = place if OF_TOKENS else assignment.to(tl.int64)
    row = _rows(block, columns, HALVED and not BY_TURNS, BLOCK_N)
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    left = given + (source * g_row)[:, None] + (k * g_dim)[None, :]
    right = matrices + expert * m_expert + (row * m_row)[None, :] + (k * m_dim)[:, None]
    steps = tl.cdiv(size, BLOCK_K)
    down = (BLOCK_N // 2 if HALVED and not BY_TURNS else BLOCK_N) * m_row
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(0, steps * blocks):
        at = step % steps
        is_last = at == steps - 1
        if WHOLE:
            a, b = tl.load(left), tl.load(right)
        else:
            is_k = k < size - at * BLOCK_K
            a = tl.load(left, mask=is_k[None, :], other=0.0)
            b = tl.load(right, mask=is_k[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=FLOAT32_DOT)
        onwards = tl.where(is_last, (1 - steps) * BLOCK_K, BLOCK_K).to(tl.int64)
        left += onwards * g_dim
        right += onwards * m_dim + tl.where(is_last, down, 0)
        if is_last:
            now = block + step // steps
            if bias is not None:
                row = _rows(now, columns, HALVED and not BY_TURNS, BLOCK_N)
                of_row = tl.load(bias + expert * b_expert + row * b_row)
                total += of_row.to(tl.float32)[None, :]
            _store(
                total, out, target, place < stop, now, columns, alpha, limit,
                GATING, HALVED, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            # A zero that a compiler can't see: it would choose between it and a sum under way.
            zero = tl.minimum(now, 0).to(tl.float32)
            total = tl.full([BLOCK_M, BLOCK_N], zero, tl.float32)


@jit
@no_type_check
def _rows(block, columns, MIXED: tl.constexpr, BLOCK: tl.constexpr):
    """The matrix' rows for a block of columns; the last in place of those that aren't there.

    MIXED: gate and up by turns even if they stand in halves, so that a thread has both of them.
    """
    row = tl.minimum(block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK), columns - 1)
    return row % 2 * (columns // 2) + row // 2 if MIXED else row


@jit
@no_type_check
def _store(
    total,
    out,
    target,
    live,
    block,
    columns,
    alpha,
    limit,
    GATING: tl.constexpr,
    HALVED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    SHARE: tl.constexpr = 2 if HALVED else 1
    if HALVED:
        gate, up = tl.split(tl.reshape(total, (BLOCK_M, BLOCK_N // 2, 2)))
        result = gated(gate, up, alpha, limit, GATING)
    elif GATING == "relu2":
        result = tl.maximum(total, 0.0) * tl.maximum(total, 0.0)
    else:
        result = total
    width = columns // SHARE
    column = block.to(tl.int64) * (BLOCK_N // SHARE) + tl.arange(0, BLOCK_N // SHARE)
    at = out + (target * width)[:, None] + column[None, :]
    mask = live[:, None] & (column < width)[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=mask)
