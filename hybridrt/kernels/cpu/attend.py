"""One query of each sequence attends to keys and values where they stand in their pages.

A sequence's tokens are cut into pieces, so that threads can share a long one. In a piece, all query
heads of a key head take their scores of a tile of tokens, and then its values, which the nearest
caches hold by then. Weights are divided by the exp of the largest score so far (arXiv 1805.02867).
In the end pieces are joined.
"""

from typing import Literal, NamedTuple, no_type_check

import numpy as np
import torch
from numba.core import types
from numba.extending import overload
from torch import Tensor

from hybridrt.kernels.cpu.attend_amx import STEP, attend_by_tiles, pack_queries, rooms_of
from hybridrt.kernels.cpu.attend_jobs import (
    Plan,
    find_job,
    plan_jobs,
    room_for_places,
)
from hybridrt.kernels.cpu.attend_join import join_rows, write
from hybridrt.kernels.cpu.attend_pairs import (
    add_tile,
    attend_by_pairs,
    copy_queries,
    join_pairs,
    most_asked,
    read_on,
    score_tile,
    split_queries,
    takes_turns,
    width_of,
)
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
from hybridrt.kernels.cpu.bfloat16 import as_float, elements, integers, short_integers, singles
from hybridrt.kernels.cpu.jit import FIRST, calls, inner
from hybridrt.kernels.cpu.pairs import BY_PAIRS
from hybridrt.kernels.cpu.share import share, sharing_kernel
from hybridrt.kernels.cpu.tile_registers import (
    ROWS,
    multiplies_tiles,
    release_tiles,
    take_tiles,
)
from hybridrt.kernels.cpu.vectors import HAS_REGISTERS, LANES, aligned, pointer

SHARE = 100_000 if HAS_REGISTERS else 50_000
"""Products that are worth a thread: 5 us with cold caches."""

FEW_HEADS = 8
"""Of a key head: for them reading takes as long as to multiply numbers that were widened."""


def by_tiles(*tensors: Tensor) -> Literal[True] | None:
    """Whether AMX multiplies these queries and pages; as `attend` is told, None if not."""
    are_pairs = all(part.dtype == torch.bfloat16 and part.shape[-1] % 2 == 0 for part in tensors)
    return True if are_pairs and multiplies_tiles() else None


class Softmax(NamedTuple):
    """Of some heads: scores or weights of a tile, and what `attend_tile.weigh` keeps of those."""

    scores: np.ndarray
    tops: np.ndarray
    totals: np.ndarray
    kept: np.ndarray
    sums: np.ndarray


@inner
@no_type_check
def _take_queries(q, query, here, sizes, scale, queries, width):  # pragma: no cover
    """Scaled queries of `here` heads, in float32; the second part begins with a vector."""
    second = width - (sizes.more + LANES - 1) // LANES * LANES
    for g in range(here):
        at = query + g * sizes.q_head
        for d in range(sizes.k):
            queries[g * width + d] = as_float(q[at + d]) * scale
        at += sizes.k
        for d in range(sizes.more):
            queries[g * width + second + d] = as_float(q[at + d]) * scale


@no_type_check
def attend_piece(
    q, query, group, queries, job, width, k, more, v, places, sizes, scale, softcap, softmax,
    v_width
):  # fmt: skip
    """A job's queries: adds to `sums` and `totals`, and raises `tops`.

    `queries: float32[job.heads, width]` is room for them. `group` of all query heads have a key
    head. Compiled for each dtype of pages.
    """


@overload(attend_piece)
@no_type_check
def _attend_piece(
    q, query, group, queries, job, width, k, more, v, places, sizes, scale, softcap, softmax,
    v_width
):  # fmt: skip  # pragma: no cover
    multiplies = BY_PAIRS and q.dtype == types.uint16

    def by_pairs(
        q, query, group, queries, job, width, k, more, v, places, sizes, scale, softcap, softmax,
        v_width
    ):  # fmt: skip
        many = multiplies and group > FEW_HEADS
        if many:
            copy_queries(q.ctypes.data, query, job.heads, sizes, queries, width)
        else:
            split_queries(q, query, job.heads, sizes, scale, queries, width)
        attend_by_pairs(
            many, queries, job, width, k, more, v, places, sizes, scale, softcap, softmax, v_width
        )  # fmt: skip
        join_pairs(softmax.sums, job.heads, v_width)

    def one_by_one(
        q, query, group, queries, job, width, k, more, v, places, sizes, scale, softcap, softmax,
        v_width
    ):  # fmt: skip
        _take_queries(q, query, job.heads, sizes, scale, queries, width)
        _attend_singles(
            queries, job.heads, width, k, more, v, places, job.tokens, sizes, softcap, softmax,
            v_width
        )  # fmt: skip

    return by_pairs if k.dtype == types.uint16 else one_by_one


@inner
@no_type_check
def _attend_singles(
    queries, here, width, k, more, v, places, count, sizes, softcap, softmax, v_width
):  # fmt: skip  # pragma: no cover
    line = 64 // k.itemsize  # elements
    q, keys, others, values = pointer(queries), pointer(k), pointer(more), pointer(v)
    weights, kept = pointer(softmax.scores), pointer(softmax.kept)
    tops, totals, sums = pointer(softmax.tops), pointer(softmax.totals), pointer(softmax.sums)
    # Keys and values that are apart are read soon after each other, as they lie in memory.
    step = TILE if sizes.values_are_keys else TILE // 4
    for t in range(0, count, step):
        tile = min(step, count - t)
        of_k, of_v, of_more = pointer(places.k[t:]), pointer(places.v[t:]), pointer(places.more[t:])
        left = count - t
        score(
            q, here, width, tile, keys, of_k, sizes.k, others, of_more, sizes.more, weights, left,
            line
        )  # fmt: skip
        weigh(weights, 0, here, tile, softcap, tops, totals, kept)
        left = 0 if sizes.values_are_keys else left
        add_values(
            weights, here, values, of_v, sizes.v, tile, kept, sums, v_width, left, line
        )  # fmt: skip


@inner
@no_type_check
def _write_heads(
    job, pieces, heads, softmax, run, run_step, head_step, size, at, apart, tops, totals, out
):  # fmt: skip  # pragma: no cover
    """Results of a row's only piece; of others, what is joined later, from `at` on."""
    width = (size + LANES - 1) // LANES * LANES
    sums, results, parts = pointer(softmax.sums), pointer(out), pointer(apart)
    for g in range(job.heads):
        place = (job.row * heads + job.head + g) * size
        if pieces > 1:
            tops[at + g], totals[at + g] = softmax.tops[g], softmax.totals[g]
        share = np.float32(1) / softmax.totals[g]
        for d in range(0, size, run):
            of_run = g * head_step + d // run * run_step
            if pieces == 1:
                write(sums, of_run, share, results, place + d, min(run, size - d))
            else:
                into = (at + g) * width + d
                write(sums, of_run, np.float32(1), parts, into, min(run, width - d))


@inner
@no_type_check
def _work(
    worker, workers, by_tiles, q, heads, k, more, v, table, table_stride, positions, sizes, scale,
    softcap, sinks, pieces, jobs, apart_rows, kv_heads, parts, apart, apart_tops, apart_totals, out
):  # fmt: skip  # pragma: no cover
    """Every job whose turn it is: a piece of a row, and some query heads."""
    plan = Plan(pieces, jobs, apart_rows, kv_heads, parts)
    most = (heads // sizes.kv_heads + parts - 1) // parts * kv_heads
    width, v_width = width_of(sizes.k) + width_of(sizes.more), width_of(sizes.v)
    # Of a head's sums so many are side by side.
    run, head_step = (v_width, v_width) if by_tiles is None else (STEP, STEP)
    run_step = most * v_width if by_tiles is None else ROWS * STEP
    rooms = None if by_tiles is None else rooms_of(sizes.k, sizes.more, sizes.v)
    queries, tiles = aligned(most * width), take_tiles(by_tiles is not None)
    queries[:] = 0
    scores = aligned((most if by_tiles is None else max(most, ROWS)) * TILE)
    softmax = Softmax(
        scores, np.empty(most, np.float32), np.empty(most, np.float32),
        np.empty(most, np.float32), aligned((sizes.v + run - 1) // run * run_step)
    )  # fmt: skip
    places = room_for_places(sizes.values_are_keys, most_asked(sizes))
    coming = room_for_places(sizes.values_are_keys, most_asked(sizes))
    line = 64 // k.itemsize
    job = find_job(worker, FIRST, plan, heads, table, table_stride, positions, sizes, places)
    for number in range(worker, plan.jobs[-1], workers):
        following = find_job(
            number + workers, job.row, plan, heads, table, table_stride, positions, sizes, coming
        )  # fmt: skip
        row, here, has_sink = job.row, job.heads, job.piece == 0 and len(sinks) > 0
        for g in range(here):
            softmax.tops[g] = sinks[job.head + g] if has_sink else NOTHING
            softmax.totals[g] = 1 if has_sink else 0
        query = row * sizes.q_token + job.head * sizes.q_head
        if by_tiles is None:
            softmax.sums[:] = 0
            if k.itemsize == 2 and takes_turns(sizes):
                read_on(job, places, following, coming)
            else:
                some = min(AHEAD, following.tokens)
                fetch(pointer(k), coming.k, 0, some, sizes.k, line)
                fetch(pointer(v), coming.v, 0, some, sizes.v, line)
            attend_piece(
                q, query, heads // sizes.kv_heads, queries, job, width, k, more, v, places, sizes,
                scale, softcap, softmax, v_width
            )  # fmt: skip
        else:
            pack_queries(q.ctypes.data, query, sizes.q_head, here, sizes.k, sizes.more, rooms)
            attend_by_tiles(
                tiles, job, following, k, more, v, places, coming, sizes, scale, softcap, rooms,
                softmax
            )  # fmt: skip
        at = plan.apart[row] + job.piece * heads + job.head
        _write_heads(
            job, plan.pieces[row], heads, softmax, run, run_step, head_step, sizes.v, at, apart,
            apart_tops, apart_totals, out
        )  # fmt: skip
        job, places, coming = following, coming, places
    release_tiles(tiles)


@sharing_kernel
@calls(score_tile, add_tile)
@no_type_check
def attend(
    by_tiles, q_like, q, like, k, more, v, table, table_stride, positions, rows, heads, sizes,
    scale, softcap, sinks, out, threads
):  # fmt: skip  # pragma: no cover
    """Each row's query, at its position, into `out`: rows, heads and values one behind another.

    All of these are addresses: queries and results have the numbers of `q_like`, pages those of
    `like`, the table int32, positions int64. A key is `[k, more]`, and so is a query. Without
    sinks, which are float32, `sinks` is 0. `by_tiles` is None, or anything else if queries and
    pages are bfloat16, of even sizes, and there is AMX.
    """
    q, k, more, v = (
        elements(q, 1, q_like),
        elements(k, 1, like),
        elements(more, 1, like),
        elements(v, 1, like),
    )
    table = short_integers(table, rows * table_stride)
    positions = integers(positions, rows)
    sinks = singles(sinks, heads if sinks != 0 else 0)
    out = elements(out, rows * heads * sizes.v, q_like)
    # Only pairs have several key heads in a job.
    kv_heads = sizes.kv_heads if by_tiles is None and k.itemsize == 2 else 1
    sharing = threads if by_tiles is None else 1  # tiles take as long for few heads
    pieces, jobs, apart_rows, kv_heads, parts = plan_jobs(
        positions, rows, heads, sizes, kv_heads, sharing
    )
    joins = apart_rows[rows]
    apart = np.empty(joins * ((sizes.v + LANES - 1) // LANES * LANES), np.float32)
    tops, totals = np.empty(joins, np.float32), np.empty(joins, np.float32)
    products = np.int64(0)
    for row in range(rows):
        seen = positions[row] + 1 - first_seen(positions[row], sizes.window, sizes.chunked)
        products += seen * heads * (sizes.k + sizes.more + sizes.v)
    workers = min(threads, jobs[rows], 1 + products // SHARE)
    given = (
        by_tiles, q, heads, k, more, v, table, table_stride, positions, sizes, scale, softcap,
        sinks, pieces, jobs, apart_rows, kv_heads, parts, apart, tops, totals, out
    )  # fmt: skip
    share(_work, workers, given)
    if joins > 0:
        share(join_rows, workers, (heads, sizes.v, pieces, apart_rows, apart, tops, totals, out))
