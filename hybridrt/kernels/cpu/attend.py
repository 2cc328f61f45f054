"""One query of each sequence attends to keys and values where they stand in their pages.

A sequence's tokens are cut into pieces, so that threads can share a long one. How depends on its
own length alone: a result doesn't depend on who else is in the batch, or on the threads. In a
piece, all query heads of a key head take their scores of a tile of tokens, and then its values,
which the nearest caches hold by then. Weights are divided by the exp of the largest score so far
(arXiv 1805.02867). In the end pieces are joined.
"""

from typing import NamedTuple, no_type_check

import numba
import numpy as np

from hybridrt.kernels.cpu.attend_join import join_rows, write
from hybridrt.kernels.cpu.attend_tile import (
    AHEAD,
    NOTHING,
    TILE,
    add_values,
    fetch,
    first_seen,
    score,
    weigh,
)
from hybridrt.kernels.cpu.bfloat16 import address_of, as_float, elements, integers, singles
from hybridrt.kernels.cpu.jit import inner, sharing_kernel
from hybridrt.kernels.cpu.vectors import LANES, aligned, pointer

PIECE = 512  # tokens at most: to join a piece costs what a few tokens do
HEADS = 16  # query heads at once: of more, threads can share a short sequence
SHARE = 400_000  # products that are worth a thread: 20 us with cold caches


class Sizes(NamedTuple):
    """Of a key's two parts and a value, of what pages hold, and how far back a token sees.

    `q_token` and `q_head` are strides of queries, whose numbers are side by side; `k_block`,
    `k_head` and `k_token` are those of the keys' first part. A window of 0 is none.
    `values_are_keys`: a value begins where its key does.
    """

    q_token: int
    q_head: int
    k: int
    more: int
    v: int
    kv_heads: int
    block_size: int
    k_block: int
    k_head: int
    k_token: int
    more_block: int
    more_token: int
    v_block: int
    v_head: int
    v_token: int
    window: int
    chunked: bool
    values_are_keys: bool


@inner
@no_type_check
def find(table, place, count, block_size, block, start, token, places):  # pragma: no cover
    """Where the tokens from `place` on begin, and three times more the last one."""
    index, offset, i = place // block_size, place % block_size, 0
    while i < count:
        first = np.int64(table[index]) * block + start
        for j in range(offset, min(block_size, offset + count - i)):
            places[i] = first + j * token
            i += 1
        index += 1
        offset = 0
    places[count : count + 3] = places[count - 1]


@inner
@no_type_check
def _plan(positions, rows, heads, jobs_a_piece, sizes):  # pragma: no cover
    """Pieces of each row; and, counted over rows, jobs, and what pieces leave to be joined."""
    longest = PIECE if jobs_a_piece > 1 else PIECE // 2  # there are two jobs soon
    pieces = np.empty(rows, np.int64)
    jobs, apart = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
    for row in range(rows):
        seen = positions[row] + 1 - first_seen(positions[row], sizes.window, sizes.chunked)
        pieces[row] = (seen + longest - 1) // longest
        jobs[row + 1] = jobs[row] + pieces[row] * jobs_a_piece
        apart[row + 1] = apart[row] + (pieces[row] * heads if pieces[row] > 1 else 0)
    return pieces, jobs, apart


@inner
@no_type_check
def _attend_piece(
    queries, here, width, k, more, v, k_places, more_places, v_places, count, sizes, softcap,
    scores, tops, totals, kept, sums, v_width
):  # fmt: skip  # pragma: no cover
    """The queries of `here` heads and a piece: adds to `sums` and `totals`, and raises `tops`."""
    line = 64 // k.itemsize  # elements
    q, keys, others, values = pointer(queries), pointer(k), pointer(more), pointer(v)
    weights, kept_parts, all_sums = pointer(scores), pointer(kept), pointer(sums)
    # Keys and values that are apart are read soon after each other, as they lie in memory.
    step = TILE if sizes.values_are_keys else TILE // 4
    for t in range(0, count, step):
        tile = min(step, count - t)
        of_k, of_v = pointer(k_places[t:]), pointer(v_places[t:])
        of_more = pointer(more_places[t:])
        left = count - t
        score(
            q, here, width, tile, keys, of_k, sizes.k, others, of_more, sizes.more, weights, left,
            line
        )  # fmt: skip
        weigh(weights, here, tile, softcap, pointer(tops), pointer(totals), kept_parts)
        left = 0 if sizes.values_are_keys else left
        add_values(
            weights, here, values, of_v, sizes.v, tile, kept_parts, all_sums, v_width, left, line
        )  # fmt: skip


@inner
@no_type_check
def _fetch_next(
    of_row, piece, kv_head, parts, k, v, k_places, v_places, count, sizes
):  # fmt: skip  # pragma: no cover
    """Begins to read what another job of the row begins with, if it has the same piece."""
    of_piece = of_row - piece * sizes.kv_heads * parts
    heads = of_piece // parts - kv_head
    if of_piece < sizes.kv_heads * parts and heads > 0:
        some, line = min(AHEAD, count), 64 // k.itemsize
        fetch(pointer(k[heads * sizes.k_head :]), k_places, 0, some, sizes.k, line)
        fetch(pointer(v[heads * sizes.v_head :]), v_places, 0, some, sizes.v, line)


@inner
@no_type_check
def _work(
    worker, workers, q, heads, k, more, v, table, table_stride, positions, sizes, scale, softcap,
    sinks, pieces, jobs, apart_rows, apart, apart_tops, apart_totals, out
):  # fmt: skip  # pragma: no cover
    """Every job whose turn it is: a piece of a row and some query heads of a key head."""
    rows = len(pieces)
    group = heads // sizes.kv_heads
    parts = (group + HEADS - 1) // HEADS
    most = (group + parts - 1) // parts
    second = (sizes.k + LANES - 1) // LANES * LANES
    width = second + (sizes.more + LANES - 1) // LANES * LANES
    v_width = (sizes.v + LANES - 1) // LANES * LANES
    queries, scores = aligned(most * width), aligned(most * TILE)
    queries[:] = 0
    sums, kept = aligned(most * v_width), np.empty(most, np.float32)
    tops, totals = np.empty(most, np.float32), np.empty(most, np.float32)
    k_places, v_places = np.empty(PIECE + 3, np.int64), np.empty(PIECE + 3, np.int64)
    more_places = np.empty(PIECE + 3, np.int64)
    row = 0
    for job in range(worker, jobs[rows], workers):
        while job >= jobs[row + 1]:
            row += 1
        # Heads of a piece by turns: their pages are neighbours.
        piece, of_piece = divmod(job - jobs[row], sizes.kv_heads * parts)
        kv_head, part = divmod(of_piece, parts)
        head = kv_head * group + part * most
        here = min(most, (kv_head + 1) * group - head)
        has_sink = piece == 0 and len(sinks) > 0
        for g in range(here):
            query = row * sizes.q_token + (head + g) * sizes.q_head
            for d in range(sizes.k):
                queries[g * width + d] = as_float(q[query + d]) * scale
            query += sizes.k
            for d in range(sizes.more):
                queries[g * width + second + d] = as_float(q[query + d]) * scale
            tops[g] = sinks[head + g] if has_sink else NOTHING
            totals[g] = 1 if has_sink else 0
        sums[:] = 0

        seen = first_seen(positions[row], sizes.window, sizes.chunked)
        length = (positions[row] + pieces[row] - seen) // pieces[row]
        count = min(length, positions[row] + 1 - seen - piece * length)
        first = seen % sizes.block_size + piece * length  # its place among those in the table
        blocks, size = table[row * table_stride :], sizes.block_size
        k_start, v_start = kv_head * sizes.k_head, kv_head * sizes.v_head
        find(blocks, first, count, size, sizes.k_block, k_start, sizes.k_token, k_places)
        find(blocks, first, count, size, sizes.v_block, v_start, sizes.v_token, v_places)
        if sizes.more > 0:
            find(blocks, first, count, size, sizes.more_block, 0, sizes.more_token, more_places)
        _fetch_next(
            job + workers - jobs[row], piece, kv_head, parts, k, v, k_places, v_places, count, sizes
        )  # fmt: skip
        _attend_piece(
            queries, here, width, k, more, v, k_places, more_places, v_places, count, sizes,
            softcap, scores, tops, totals, kept, sums, v_width
        )  # fmt: skip

        for g in range(here):
            if pieces[row] == 1:
                place = (row * heads + head + g) * sizes.v
                write(sums, g * v_width, np.float32(1) / totals[g], out, place, sizes.v)
            else:
                at = apart_rows[row] + piece * heads + head + g
                apart_tops[at], apart_totals[at] = tops[g], totals[g]
                write(sums, g * v_width, np.float32(1), apart, at * v_width, v_width)


@sharing_kernel
@no_type_check
def attend(
    q_like, q, like, k, more, v, table, table_stride, positions, rows, heads, sizes, scale, softcap,
    sinks, out, threads
):  # fmt: skip  # pragma: no cover
    """Each row's query, at its position, into `out`: rows, heads and values one behind another.

    All of these are addresses: queries and results have the numbers of `q_like`, pages those of
    `like`, the table int32, positions int64. A key is `[k, more]`, and so is a query. Without
    sinks, which are float32, `sinks` is 0.
    """
    q, k, more, v = (
        elements(q, 1, q_like),
        elements(k, 1, like),
        elements(more, 1, like),
        elements(v, 1, like),
    )
    table = numba.carray(address_of(table), (rows * table_stride,), np.int32)
    positions = integers(positions, rows)
    sinks = singles(sinks, heads if sinks != 0 else 0)
    out = elements(out, rows * heads * sizes.v, q_like)
    parts = (heads // sizes.kv_heads + HEADS - 1) // HEADS
    pieces, jobs, apart_rows = _plan(positions, rows, heads, sizes.kv_heads * parts, sizes)
    joins = apart_rows[rows]
    apart = np.empty(joins * ((sizes.v + LANES - 1) // LANES * LANES), np.float32)
    tops, totals = np.empty(joins, np.float32), np.empty(joins, np.float32)
    products = np.int64(0)
    for row in range(rows):
        seen = positions[row] + 1 - first_seen(positions[row], sizes.window, sizes.chunked)
        products += seen * heads * (sizes.k + sizes.more + sizes.v)
    workers = min(threads, jobs[rows], 1 + products // SHARE)
    if workers == 1:
        _work(
            0, workers, q, heads, k, more, v, table, table_stride, positions, sizes, scale, softcap,
            sinks, pieces, jobs, apart_rows, apart, tops, totals, out
        )  # fmt: skip
        join_rows(0, workers, heads, sizes.v, pieces, apart_rows, apart, tops, totals, out)
        return
    for worker in numba.prange(workers):
        _work(
            np.int64(worker), workers, q, heads, k, more, v, table, table_stride, positions, sizes,
            scale, softcap, sinks, pieces, jobs, apart_rows, apart, tops, totals, out
        )  # fmt: skip
    if joins > 0:
        for worker in numba.prange(workers):
            join_rows(
                np.int64(worker), workers, heads, sizes.v, pieces, apart_rows, apart, tops,
                totals, out
            )  # fmt: skip
