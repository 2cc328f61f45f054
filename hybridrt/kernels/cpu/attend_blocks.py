"""Queries of a chunk attend to keys and values in blocks, in numba.

A head's queries are taken some at a time through all blocks that they see, one after another:
scores, weights relative to the largest score so far (arXiv 1805.02867), and sums of values. Blocks
lie where they lie in the sequence, so a result depends neither on the chunk nor on its neighbours.
"""

from typing import NamedTuple, no_type_check

import numba
import numpy as np

from hybridrt.kernels.cpu.attend_tile import NOTHING, capped, first_seen
from hybridrt.kernels.cpu.fast_exp import LOG2_E
from hybridrt.kernels.cpu.jit import (
    ALONE,
    FIRST,
    argument,
    calls,
    inner,
    inner_sums,
    sharing_kernel,
)
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.packed_linear import add_products
from hybridrt.kernels.cpu.tile_registers import release_tiles, take_tiles
from hybridrt.kernels.cpu.vector_math import (
    add,
    exp2,
    fma,
    largest_lane,
    more_of,
    mul,
    splat,
    sub,
    sum_of_lanes,
)
from hybridrt.kernels.cpu.vectors import LANES, aligned, load, load_some, pointer, store, store_some

assert OUTPUTS == 4 * LANES, "scores of a block are four vectors"
QUERIES = 128  # of a head at a time: their sums stay in the second cache


@argument
class Chunk(NamedTuple):
    """Sizes of a chunk: `queries` from `position` on, and blocks from `first_block` on.

    It has `heads` query heads from `first_head` on, `group` of a key head. A window of 0 is none.
    Sizes of keys and values are numbers, and `q_head` and `q_token` steps. Products are made by
    tiles where `tiles`.
    """

    first_head: int
    heads: int
    group: int
    queries: int
    position: int
    first_block: int
    k: int
    v: int
    q_head: int
    q_token: int
    window: int
    chunked: bool
    tiles: bool


@inner
@no_type_check
def _cap(scores, count, scale, softcap):  # pragma: no cover  (compiled, as all below)
    """Scores times `scale`, between `-softcap` and `softcap`."""
    for i in range(count):
        scores[i] = capped(scores[i] * scale, softcap)


@inner
@no_type_check
def _hide(scores, rows, position, start, window, chunked):  # pragma: no cover
    """Has scores of a block that begins at `start` count nothing where a query doesn't see."""
    for r in range(rows):
        here = position + r
        for j in range(min(first_seen(here, window, chunked) - start, OUTPUTS)):
            scores[r * OUTPUTS + j] = NOTHING
        for j in range(max(here + 1 - start, 0), OUTPUTS):
            scores[r * OUTPUTS + j] = NOTHING


@inner
@no_type_check
def _raise_tops(scores, rows, scale, tops, kept):  # pragma: no cover
    """Takes the largest score of each row into `tops`; and what part is kept of sums before.

    Scores times `scale` are exponents of two.
    """
    for r in range(rows):
        at = r * OUTPUTS
        one = more_of(load(scores, at), load(scores, at + LANES))
        other = more_of(load(scores, at + 2 * LANES), load(scores, at + 3 * LANES))
        kept[r] = max(tops[r], largest_lane(more_of(one, other)) * scale)
    for r in range(0, rows, LANES):
        some = min(LANES, rows - r)
        before, now = load_some(tops, r, some), load_some(kept, r, some)
        store_some(now, tops, r, some)
        store_some(exp2(sub(before, now)), kept, r, some)


@inner_sums
@no_type_check
def _weigh(scores, rows, scale, tops, kept, totals, weights):  # pragma: no cover
    """Weights of each row's scores, which are added to its vector of `totals`."""
    factor = splat(scale)
    for r in range(rows):
        at, top = r * OUTPUTS, splat(-tops[r])
        a = exp2(fma(load(scores, at), factor, top))
        b = exp2(fma(load(scores, at + LANES), factor, top))
        c = exp2(fma(load(scores, at + 2 * LANES), factor, top))
        d = exp2(fma(load(scores, at + 3 * LANES), factor, top))
        store(a, weights, at)
        store(b, weights, at + LANES)
        store(c, weights, at + 2 * LANES)
        store(d, weights, at + 3 * LANES)
        before = load(totals, r * LANES)
        store(fma(before, splat(kept[r]), add(add(a, b), add(c, d))), totals, r * LANES)


@inner
@no_type_check
def _attend(
    tiles, query, rows, position, k_blocks, v_blocks, chunk, scale, softcap, sink, scores, weights,
    tops, totals, kept, sums
):  # fmt: skip  # pragma: no cover
    """The queries of one head from `position` on, to the blocks of its key head, into `sums`."""
    has_sink = sink > NOTHING
    width = (chunk.v + OUTPUTS - 1) // OUTPUTS * OUTPUTS
    tops[:rows] = sink * LOG2_E
    totals[: rows * LANES] = 0
    for r in range(rows if has_sink else 0):
        totals[r * LANES] = 1
    sums[: rows * width] = 0
    # Of the rows' sums those for the same outputs of a value are neighbours.
    of_scores, of_weights = pointer(scores), pointer(weights)
    of_sums, of_kept = pointer(sums), pointer(kept)
    first = first_seen(position, chunk.window, chunk.chunked) // OUTPUTS
    for block in range(first, (position + rows - 1) // OUTPUTS + 1):
        start = block * OUTPUTS
        begin, end = max(start - position, 0), rows
        while first_seen(position + end - 1, chunk.window, chunk.chunked) >= start + OUTPUTS:
            end -= 1
        some = end - begin
        keys = k_blocks[block - chunk.first_block]
        values = v_blocks[block - chunk.first_block]
        step = 2 * chunk.q_token
        add_products(
            tiles, 1, keys.ctypes.data, query + begin * step, step, chunk.k // 2,
            scores.ctypes.data, some, keys.ctypes.data + keys.nbytes
        )  # fmt: skip
        if softcap > 0:
            _cap(scores, some * OUTPUTS, scale, softcap)
        last_start = first_seen(position + end - 1, chunk.window, chunk.chunked)
        if start + OUTPUTS > position + begin + 1 or last_start > start:
            _hide(scores, some, position + begin, start, chunk.window, chunk.chunked)
        factor = LOG2_E if softcap > 0 else scale * LOG2_E
        of_tops = pointer(tops[begin:])
        _raise_tops(of_scores, some, factor, of_tops, of_kept)
        of_totals = pointer(totals[begin * LANES :])
        _weigh(of_scores, some, factor, of_tops, of_kept, of_totals, of_weights)
        for part in range(width // OUTPUTS):
            at = (part * rows + begin) * OUTPUTS
            for r in range(some):
                if kept[r] != 1:
                    share = splat(kept[r])
                    for d in range(at + r * OUTPUTS, at + (r + 1) * OUTPUTS, LANES):
                        store(mul(load(of_sums, d), share), of_sums, d)
            of_part = values.ctypes.data + 2 * OUTPUTS * OUTPUTS * part
            add_products(
                tiles, 0, of_part, weights.ctypes.data, 2 * OUTPUTS, OUTPUTS // 2,
                sums.ctypes.data + 4 * at, some, of_part + 2 * OUTPUTS * OUTPUTS
            )  # fmt: skip


@inner
@no_type_check
def _work(
    worker, workers, q, k_blocks, v_blocks, chunk, scale, softcap, sinks, out
):  # fmt: skip  # pragma: no cover
    """Every job whose turn it is: some queries of a head, the last ones, which see most, first."""
    width = (chunk.v + OUTPUTS - 1) // OUTPUTS * OUTPUTS
    scores = aligned(QUERIES * OUTPUTS)
    weights = aligned(QUERIES * OUTPUTS // 2).view(np.uint16)
    sums, totals = aligned(QUERIES * width), aligned(QUERIES * LANES)
    tops, kept = aligned(QUERIES), aligned(QUERIES)
    tiles, before = take_tiles(chunk.tiles), chunk.position // QUERIES
    parts = (chunk.position + chunk.queries - 1) // QUERIES + 1 - before
    for job in range(worker, parts * chunk.heads, workers):
        part, index = before + parts - 1 - job // chunk.heads, job % chunk.heads
        head, kv_head = chunk.first_head + index, index // chunk.group
        begin = max(part * QUERIES, chunk.position) - chunk.position
        rows = min((part + 1) * QUERIES - chunk.position, chunk.queries) - begin
        query = q + 2 * (head * chunk.q_head + begin * chunk.q_token)
        _attend(
            tiles, query, rows, chunk.position + begin, k_blocks[kv_head], v_blocks[kv_head],
            chunk, scale, softcap, sinks[head] if len(sinks) > 0 else NOTHING, scores, weights,
            tops, totals, kept, sums
        )  # fmt: skip
        for r in range(rows):
            result, total = pointer(out[begin + r, head]), load(pointer(totals), r * LANES)
            share = splat(np.float32(1) / sum_of_lanes(total))
            for d in range(0, chunk.v, LANES):
                at = (d // OUTPUTS * rows + r) * OUTPUTS + d % OUTPUTS
                some = min(LANES, chunk.v - d)
                store_some(mul(load(pointer(sums), at), share), result, d, some)
    release_tiles(tiles)


@sharing_kernel
@calls(add_products)
@no_type_check
def attend_blocks(
    q, k_blocks, v_blocks, chunk, scale, softcap, sinks, out, workers
):  # fmt: skip  # pragma: no cover
    """A chunk's queries, at the address `q`, into `out`: uint16 `[queries, heads, v]`."""
    if workers == 1:
        _work(FIRST, ALONE, q, k_blocks, v_blocks, chunk, scale, softcap, sinks, out)
        return
    for worker in numba.prange(workers):
        _work(np.int64(worker), workers, q, k_blocks, v_blocks, chunk, scale, softcap, sinks, out)
