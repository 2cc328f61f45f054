"""Queries of a chunk attend to keys and values of their sequence, in numba.

Those are put into blocks first (`pack_tokens`). Then a head's queries are taken some at a time
through all blocks that they see, one after another: scores, weights relative to about the largest
score so far (arXiv 1805.02867; see `SLACK`), and sums of values. Blocks lie where they lie in the
sequence, so a result depends neither on the chunk nor on its neighbours.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from hybridrt.kernels.cpu.attend_tile import NOTHING, capped, first_seen
from hybridrt.kernels.cpu.bfloat16 import (
    as_halves,
    as_words,
    halves,
    integers,
    short_integers,
    singles,
)
from hybridrt.kernels.cpu.fast_exp import LOG2_E
from hybridrt.kernels.cpu.jit import argument, calls, inner, inner_sums
from hybridrt.kernels.cpu.pack_tokens import pack_block
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.packed_linear import add_products
from hybridrt.kernels.cpu.pairs import store_and_add
from hybridrt.kernels.cpu.share import share, share_each, sharing_kernel
from hybridrt.kernels.cpu.tile_registers import ROWS, release_tiles, take_tiles
from hybridrt.kernels.cpu.tiles import add_near
from hybridrt.kernels.cpu.vector_math import (
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

SLACK = np.float32(1)
"""What the exponent of a weight may be above 0 before sums are brought down, which takes time.

With more, results err by more: of weights from 1 on bfloat16 has few exactly, but 1 itself, which
the largest one often is.
"""


@argument
class Queries(NamedTuple):
    """Where a part of each query stands: the first one's address, and steps in numbers."""

    address: int
    head: int
    token: int
    size: int


@argument
class Heads(NamedTuple):
    """Sizes of queries, and of keys and values, which are in pages of `page_size` tokens.

    A window of 0 is none. Products are made by tiles where `tiles`. So many bytes of blocks are
    made at once: of more, heads take turns.
    """

    q_heads: int
    kv_heads: int
    page_size: int
    k: int
    v: int
    window: int
    chunked: bool
    tiles: bool
    most_bytes: int


class Chunk(NamedTuple):
    """A row's `queries`, of which the first has a `position`, and so many `tokens` that they see.

    Those begin at a `place` in their first page. They make so many `blocks`, of which the first
    one, `first_block` of the sequence, begins with `skipped` others.
    """

    queries: int
    position: int
    place: int
    tokens: int
    first_block: int
    blocks: int
    skipped: int


@inner
@no_type_check
def _chunk(queries, context, heads):  # pragma: no cover  (compiled, as all below)
    first = first_seen(context, heads.window, heads.chunked)
    tokens, first_block = context + queries - first, first // OUTPUTS
    return Chunk(
        queries, context, first % heads.page_size, tokens, first_block,
        (first + tokens - 1) // OUTPUTS + 1 - first_block, first - first_block * OUTPUTS
    )  # fmt: skip


@inner
@no_type_check
def _cap(scores, count, scale, softcap):  # pragma: no cover
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

    Those are of the weights as they are rounded, so that what a query hardly sees beside another
    token doesn't change what it sees of that one.

    Scores times `scale` are exponents of two; weights are relative to `tops`, which are moved where
    an exponent would be more than `SLACK`.
    """
    factor = splat(scale)
    for r in range(count):
        at, row = r * OUTPUTS, first + r
        a, b = load(scores, at), load(scores, at + LANES)
        c, d = load(scores, at + 2 * LANES), load(scores, at + 3 * LANES)
        largest = mul(more_of(more_of(a, b), more_of(c, d)), factor)
        if any_more(largest, splat(tops[row] + SLACK)):
            before, tops[row] = tops[row], largest_lane(largest)
            if before > NOTHING:
                _bring_down(exp2(splat(before - tops[row])), row, totals, sums, width, rows)
        top = splat(-tops[row])
        a, b = exp2(fma(a, factor, top)), exp2(fma(b, factor, top))
        c, d = exp2(fma(c, factor, top)), exp2(fma(d, factor, top))
        total = store_and_add(a, b, weights, at, load(totals, row * LANES))
        total = store_and_add(c, d, weights, at + 2 * LANES, total)
        store(total, totals, row * LANES)


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
    tiles, queries, rows, position, keys, k_bytes, values, v_bytes, first_block, heads, scale,
    softcap, sink,
    scores, weights, tops, totals, sums
):  # fmt: skip  # pragma: no cover
    """The queries of one head from `position` on, to the blocks of its key head, into `sums`.

    Queries, keys and values are addresses.
    """
    width, q_bytes = (heads.v + OUTPUTS - 1) // OUTPUTS * OUTPUTS, 2 * heads.k
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
    first = first_seen(position, heads.window, heads.chunked) // OUTPUTS
    for block in range(first, (position + rows - 1) // OUTPUTS + 1):
        start = block * OUTPUTS
        begin, end = max(start - position, 0), rows
        while first_seen(position + end - 1, heads.window, heads.chunked) >= start + OUTPUTS:
            end -= 1
        last_start = first_seen(position + end - 1, heads.window, heads.chunked)
        hides = start + OUTPUTS > position + begin + 1 or last_start > start
        of_block = block - first_block
        for row in range(begin, end, at_once):
            some = min(at_once, end - row)
            _multiply(
                tiles, 1, keys + k_bytes * of_block, queries + q_bytes * row, q_bytes, heads.k // 2,
                at_scores, some
            )  # fmt: skip
            if softcap > 0:
                _cap(scores, some * OUTPUTS, scale, softcap)
            if hides:
                _hide(of_scores, some, position + row, start, heads.window, heads.chunked)
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
def _copy(queries, head, first, rows, to, place, step):  # pragma: no cover
    """Copies a part of `rows` queries of a head, from the `first` token on, `step` apart."""
    given = pointer(halves(queries.address, 1))
    for r in range(rows):
        query, into = head * queries.head + (first + r) * queries.token, place + r * step
        for d in range(0, queries.size, LANES):
            some = min(LANES, queries.size - d)
            store_up_to(load_up_to(given, query + d, some), to, into + d, some)


@inner
@no_type_check
def _work(
    worker, workers, start, count, q, more_q, first, k_blocks, v_blocks, queries, context, heads,
    scale, softcap, sinks, out
):  # fmt: skip  # pragma: no cover
    """Every job whose turn it is: some queries of a head, the last ones, which see most, first.

    The row's are those from the `first` token on. Heads, of `count` key heads from `start` on,
    follow one another: what one has of keys and values stays in the second cache.
    """
    chunk = _chunk(queries, context, heads)
    width, size = (heads.v + OUTPUTS - 1) // OUTPUTS * OUTPUTS, max(QUERIES, AT_ONCE)
    own = as_halves(aligned(QUERIES * heads.k // 2))
    scores, weights = aligned(size * OUTPUTS), as_halves(aligned(size * OUTPUTS // 2))
    sums, totals, tops = aligned(QUERIES * width), aligned(QUERIES * LANES), aligned(QUERIES)
    of_own, of_out = pointer(own), pointer(halves(out, 1))
    of_sums, of_totals, group = pointer(sums), pointer(totals), heads.q_heads // heads.kv_heads
    k_bytes, v_bytes = 4 * k_blocks.shape[2], 4 * v_blocks.shape[2]
    tiles, before = take_tiles(heads.tiles), chunk.position // QUERIES
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
        _copy(q, head, first + begin, rows, of_own, 0, heads.k)
        _copy(more_q, head, first + begin, rows, of_own, q.size, heads.k)
        _attend(
            tiles, own.ctypes.data, rows, chunk.position + begin,
            k_blocks.ctypes.data + k_bytes * blocks, k_bytes,
            v_blocks.ctypes.data + v_bytes * blocks, v_bytes, chunk.first_block, heads, scale,
            softcap, sinks[head] if len(sinks) > 0 else NOTHING, scores, weights, tops, totals, sums
        )  # fmt: skip
        for r in range(rows):
            result = ((begin + r) * heads.q_heads + head) * heads.v
            share = splat(np.float32(1) / sum_of_lanes(load(of_totals, r * LANES)))
            for d in range(0, heads.v, LANES):
                at = (d // OUTPUTS * rows + r) * OUTPUTS + d % OUTPUTS
                some = min(LANES, heads.v - d)
                store_up_to(mul(load(of_sums, at), share), of_out, result + d, some)
    release_tiles(tiles)


@inner
@no_type_check
def _room(heads, blocks, pairs):  # pragma: no cover
    """For blocks of so many pairs of numbers of each head."""
    return as_words(aligned(heads * blocks * pairs)).reshape(heads, blocks, pairs)


@inner
@no_type_check
def _pack(
    job, blocks, k, more, v, first, table, place, page_size, seen, skipped, k_blocks, v_blocks
):  # fmt: skip  # pragma: no cover
    """A block of one of the heads from the `first` on."""
    head, block = divmod(job, blocks)
    pack_block(
        block, k, more, v, first + head, table, place, page_size, seen, skipped,
        k_blocks[head, block], v_blocks[head, block]
    )  # fmt: skip


@sharing_kernel
@calls(add_products)
@no_type_check
def attend_blocks(
    q, more_q, k, more, v, tables, table_stride, query_lens, context_lens, first_row, rows, tokens,
    heads, scale, softcap, sinks, out, workers
):  # fmt: skip  # pragma: no cover
    """The chunks of all rows from `first_row` on, one behind another, behind a token of each other.

    What is behind them, up to so many `tokens`, gets zeros. Queries are `[q, more_q]`, keys `[k,
    more]`; these and `v` are `Pages`. `out`, which is bfloat16 `[tokens, heads, v]`, `tables` of
    int32 pages, `query_lens` and `context_lens` are addresses, and so is `sinks`, float32; 0 if
    there are none.
    """
    scale, softcap = np.float32(scale), np.float32(softcap)
    lengths, contexts = integers(query_lens, rows), integers(context_lens, rows)
    sinks = singles(sinks, heads.q_heads if sinks != 0 else 0)
    width, begin = (heads.v + OUTPUTS - 1) // OUTPUTS * OUTPUTS, first_row
    for row in range(first_row, rows):
        queries, context = lengths[row], contexts[row]
        chunk = _chunk(queries, context, heads)
        place, seen, blocks, skipped = chunk.place, chunk.tokens, chunk.blocks, chunk.skipped
        first, of_out = begin, out + 2 * begin * heads.q_heads * heads.v
        begin += queries
        pages = (place + seen - 1) // heads.page_size + 1
        table = short_integers(tables + 4 * row * table_stride, pages)
        numbers = 2 * blocks * OUTPUTS * (heads.k + heads.v)
        at_once = max(1, min(heads.kv_heads, heads.most_bytes // numbers))
        k_blocks = _room(at_once, blocks, OUTPUTS * heads.k // 2)
        v_blocks = _room(at_once, blocks, OUTPUTS * width // 2)
        for start in range(0, heads.kv_heads, at_once):
            count = min(at_once, heads.kv_heads - start)
            source = (
                blocks, k, more, v, start, table, place, heads.page_size, seen, skipped, k_blocks,
                v_blocks
            )  # fmt: skip
            share_each(_pack, workers, count * blocks, source)
            given = (
                start, count, q, more_q, first, k_blocks, v_blocks, queries, context, heads, scale,
                softcap, sinks, of_out
            )  # fmt: skip
            share(_work, workers, given)
    rest = (tokens - begin) * heads.q_heads * heads.v
    halves(out + 2 * begin * heads.q_heads * heads.v, rest)[:] = 0
