"""Queries of a chunk attend to keys and values of their sequence, in numba.

Those are put into blocks first (`pack_tokens`). Then a head's queries are taken some at a time
through all blocks that they see, one after another: scores, weights relative to the largest score
so far (arXiv 1805.02867), and sums of values. Blocks lie where they lie in the sequence, so a
result depends neither on the chunk nor on its neighbours.
"""

from typing import NamedTuple, no_type_check

import numba
import numpy as np

from hybridrt.kernels.cpu.attend_tile import NOTHING, capped, first_seen
from hybridrt.kernels.cpu.bfloat16 import address_of, halves, singles
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
from hybridrt.kernels.cpu.pack_tokens import pack_block
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.packed_linear import add_products
from hybridrt.kernels.cpu.tile_registers import ROWS, release_tiles, take_tiles
from hybridrt.kernels.cpu.tiles import add_near
from hybridrt.kernels.cpu.vector_math import (
    add,
    any_more,
    exp2,
    fma,
    largest_lane,
    more_of,
    mul,
    splat,
    sum_of_lanes,
)
from hybridrt.kernels.cpu.vectors import (
    LANES,
    aligned,
    load,
    load_up_to,
    pointer,
    store,
    store_some,
    store_up_to,
)

assert OUTPUTS == 4 * LANES, "scores of a block are four vectors"
QUERIES = 128
"""Of a head at a time: their sums stay in the second cache."""

AT_ONCE = 2 * ROWS
"""Of these by tiles: their scores and weights stay in the nearest cache."""


@argument
class Chunk(NamedTuple):
    """Sizes of a chunk: `queries` from `position` on, which see so many `tokens` in pages.

    Those begin at a `place` in pages of `page_size` tokens. They make so many `blocks`, of which
    the first one, `first_block` of the sequence, begins with `skipped` others. So many key heads
    are in blocks `at_once`. A window of 0 is none. Sizes of keys and values are numbers, and
    `q_head` and `q_token` steps. Products are made by tiles where `tiles`.
    """

    heads: int
    kv_heads: int
    at_once: int
    queries: int
    position: int
    place: int
    page_size: int
    tokens: int
    first_block: int
    blocks: int
    skipped: int
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
    nothing = splat(NOTHING)
    for r in range(rows):
        here, at = position + r, r * OUTPUTS
        before = min(first_seen(here, window, chunked) - start, OUTPUTS)
        for d in range(0, before, LANES):
            store_some(nothing, scores, at + d, min(before - d, LANES))
        seen = max(here + 1 - start, 0)
        for d in range(seen // LANES * LANES, OUTPUTS, LANES):
            those = load(scores, at + d)
            store(nothing, scores, at + d)
            store_some(those, scores, at + d, max(seen - d, 0))


@inner
@no_type_check
def _bring_down(kept, row, totals, sums, width, rows):  # pragma: no cover
    """Keeps a part of what a row has summed."""
    store(mul(load(totals, row * LANES), kept), totals, row * LANES)
    for part in range(0, width * rows, OUTPUTS * rows):
        begin = part + row * OUTPUTS
        for d in range(begin, begin + OUTPUTS, LANES):
            store(mul(load(sums, d), kept), sums, d)


@inner_sums
@no_type_check
def _weigh(
    scores, weights, count, scale, first, tops, totals, sums, width, rows
):  # fmt: skip  # pragma: no cover
    """Weights of the scores of `count` rows, from the `first` on, added to each one's `totals`.

    Scores times `scale` are exponents of two; weights are relative to `tops`.
    """
    factor = splat(scale)
    for r in range(count):
        at, row = r * OUTPUTS, first + r
        a, b = load(scores, at), load(scores, at + LANES)
        c, d = load(scores, at + 2 * LANES), load(scores, at + 3 * LANES)
        largest = mul(more_of(more_of(a, b), more_of(c, d)), factor)
        if any_more(largest, splat(tops[row])):
            before, tops[row] = tops[row], largest_lane(largest)
            _bring_down(exp2(splat(before - tops[row])), row, totals, sums, width, rows)
        top = splat(-tops[row])
        a = exp2(fma(a, factor, top))
        b = exp2(fma(b, factor, top))
        c = exp2(fma(c, factor, top))
        d = exp2(fma(d, factor, top))
        store(a, weights, at)
        store(b, weights, at + LANES)
        store(c, weights, at + 2 * LANES)
        store(d, weights, at + 3 * LANES)
        added = add(add(a, b), add(c, d))
        store(add(load(totals, row * LANES), added), totals, row * LANES)


@inner
@no_type_check
def _multiply(
    tiles, anew, block, vectors, vector_bytes, pairs, sums, count
):  # fmt: skip  # pragma: no cover
    """Adds products of a block with `count` vectors to `sums: float32[count, OUTPUTS]`."""
    if tiles != 0:
        add_near(tiles, anew != 0, block, vectors, vector_bytes, pairs, sums, count)
    else:
        end = block + 4 * OUTPUTS * pairs
        add_products(0, anew, block, vectors, vector_bytes, pairs, sums, count, end)


@inner
@no_type_check
def _attend(
    tiles, queries, rows, position, keys, k_bytes, values, v_bytes, chunk, scale, softcap, sink,
    scores, weights, tops, totals, sums
):  # fmt: skip  # pragma: no cover
    """The queries of one head from `position` on, to the blocks of its key head, into `sums`.

    Queries, keys and values are addresses.
    """
    width, q_bytes = (chunk.v + OUTPUTS - 1) // OUTPUTS * OUTPUTS, 2 * chunk.k
    tops[:rows] = sink * LOG2_E
    totals[: rows * LANES] = 0
    for r in range(rows if sink > NOTHING else 0):
        totals[r * LANES] = 1
    sums[: rows * width] = 0
    # Arrays are counted wherever they are passed on; pointers and addresses are not.
    of_tops, of_totals, of_sums = pointer(tops), pointer(totals), pointer(sums)
    of_scores, of_weights = pointer(scores), pointer(weights)
    at_scores, at_weights, at_sums = scores.ctypes.data, weights.ctypes.data, sums.ctypes.data
    factor, at_once = LOG2_E if softcap > 0 else scale * LOG2_E, AT_ONCE if tiles != 0 else rows
    first = first_seen(position, chunk.window, chunk.chunked) // OUTPUTS
    for block in range(first, (position + rows - 1) // OUTPUTS + 1):
        start = block * OUTPUTS
        begin, end = max(start - position, 0), rows
        while first_seen(position + end - 1, chunk.window, chunk.chunked) >= start + OUTPUTS:
            end -= 1
        last_start = first_seen(position + end - 1, chunk.window, chunk.chunked)
        hides = start + OUTPUTS > position + begin + 1 or last_start > start
        of_block = block - chunk.first_block
        for row in range(begin, end, at_once):
            some = min(at_once, end - row)
            _multiply(
                tiles, 1, keys + k_bytes * of_block, queries + q_bytes * row, q_bytes, chunk.k // 2,
                at_scores, some
            )  # fmt: skip
            if softcap > 0:
                _cap(scores, some * OUTPUTS, scale, softcap)
            if hides:
                _hide(of_scores, some, position + row, start, chunk.window, chunk.chunked)
            _weigh(
                of_scores, of_weights, some, factor, row, of_tops, of_totals, of_sums, width, rows
            )  # fmt: skip
            # Of the rows' sums those for the same outputs of a value are neighbours.
            for d in range(0, width, OUTPUTS):
                _multiply(
                    tiles, 0, values + v_bytes * of_block + 2 * OUTPUTS * d, at_weights,
                    2 * OUTPUTS, OUTPUTS // 2, at_sums + 4 * (d * rows + row * OUTPUTS), some
                )  # fmt: skip


@inner
@no_type_check
def _work(
    worker, workers, start, count, q, k_blocks, v_blocks, chunk, scale, softcap, sinks, out
):  # fmt: skip  # pragma: no cover
    """Every job whose turn it is: some queries of a head, the last ones, which see most, first.

    Heads, of `count` key heads from `start` on, follow one another: what one has of keys and
    values stays in the second cache.
    """
    width, size = (chunk.v + OUTPUTS - 1) // OUTPUTS * OUTPUTS, max(QUERIES, AT_ONCE)
    own = aligned(QUERIES * chunk.k // 2).view(np.uint16)
    scores, weights = aligned(size * OUTPUTS), aligned(size * OUTPUTS // 2).view(np.uint16)
    sums, totals, tops = aligned(QUERIES * width), aligned(QUERIES * LANES), aligned(QUERIES)
    of_q, of_own, of_out = pointer(halves(q, 1)), pointer(own), pointer(halves(out, 1))
    of_sums, of_totals, group = pointer(sums), pointer(totals), chunk.heads // chunk.kv_heads
    k_bytes, v_bytes = 4 * k_blocks.shape[2], 4 * v_blocks.shape[2]
    tiles, before = take_tiles(chunk.tiles), chunk.position // QUERIES
    parts = (chunk.position + chunk.queries - 1) // QUERIES + 1 - before
    for turn in range((parts * count * group + workers - 1) // workers):
        # There and back, so that nobody always has those that see more.
        job = turn * workers + (worker if turn % 2 == 0 else workers - 1 - worker)
        if job >= parts * count * group:
            continue
        part, index = before + parts - 1 - job % parts, job // parts
        head, blocks = start * group + index, index // group * chunk.blocks
        begin = max(part * QUERIES, chunk.position) - chunk.position
        rows = min((part + 1) * QUERIES - chunk.position, chunk.queries) - begin
        for r in range(rows):
            query = head * chunk.q_head + (begin + r) * chunk.q_token
            for d in range(0, chunk.k, LANES):
                some = min(LANES, chunk.k - d)
                store_up_to(load_up_to(of_q, query + d, some), of_own, r * chunk.k + d, some)
        _attend(
            tiles, own.ctypes.data, rows, chunk.position + begin,
            k_blocks.ctypes.data + k_bytes * blocks, k_bytes,
            v_blocks.ctypes.data + v_bytes * blocks, v_bytes, chunk, scale, softcap,
            sinks[head] if len(sinks) > 0 else NOTHING, scores, weights, tops, totals, sums
        )  # fmt: skip
        for r in range(rows):
            result = ((begin + r) * chunk.heads + head) * chunk.v
            share = splat(np.float32(1) / sum_of_lanes(load(of_totals, r * LANES)))
            for d in range(0, chunk.v, LANES):
                at = (d // OUTPUTS * rows + r) * OUTPUTS + d % OUTPUTS
                some = min(LANES, chunk.v - d)
                store_up_to(mul(load(of_sums, at), share), of_out, result + d, some)
    release_tiles(tiles)


@inner
@no_type_check
def _room(heads, blocks, pairs):  # pragma: no cover
    """For blocks of so many pairs of numbers of each head."""
    return aligned(heads * blocks * pairs).view(np.uint32).reshape(heads, blocks, pairs)


@sharing_kernel
@calls(add_products)
@no_type_check
def attend_blocks(
    q, k, more, v, table, chunk, scale, softcap, sinks, out, workers
):  # fmt: skip  # pragma: no cover
    """A chunk's queries, at the address `q`, into `out`: bfloat16 `[queries, heads, v]`.

    Keys are `[k, more]`. These and `v` are `Pages`, of which `table: int32` has those of the
    sequence. Without sinks, which are float32, `sinks` is 0. It, `out` and `table` are addresses.
    """
    scale, softcap = np.float32(scale), np.float32(softcap)
    pages = (chunk.place + chunk.tokens - 1) // chunk.page_size + 1
    table = numba.carray(address_of(table), (pages,), np.int32)
    sinks = singles(sinks, chunk.heads if sinks != 0 else 0)
    width = (chunk.v + OUTPUTS - 1) // OUTPUTS * OUTPUTS
    k_blocks = _room(chunk.at_once, chunk.blocks, OUTPUTS * chunk.k // 2)
    v_blocks = _room(chunk.at_once, chunk.blocks, OUTPUTS * width // 2)
    for start in range(0, chunk.kv_heads, chunk.at_once):
        count = min(chunk.at_once, chunk.kv_heads - start)
        for job in numba.prange(count * chunk.blocks):
            head, block = divmod(np.int64(job), chunk.blocks)
            pack_block(
                block, k, more, v, start + head, table, chunk.place, chunk.page_size, chunk.tokens,
                chunk.skipped, k_blocks[head, block], v_blocks[head, block]
            )  # fmt: skip
        if workers == 1:
            _work(
                FIRST, ALONE, start, count, q, k_blocks, v_blocks, chunk, scale, softcap, sinks, out
            )  # fmt: skip
        else:
            for worker in numba.prange(workers):
                _work(
                    np.int64(worker), workers, start, count, q, k_blocks, v_blocks, chunk, scale,
                    softcap, sinks, out
                )  # fmt: skip
