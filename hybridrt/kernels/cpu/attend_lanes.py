"""A chunk's queries attend to keys and values where they stand in their pages, in numba.

Each query, with each of its heads, has a lane of a vector. A key's number is then one factor for
all lanes, and so is a value's; largest scores and sums of weights need nothing of other lanes; and
nothing is brought into another order but the queries. Tokens are taken some at a time from the
sequence's first on, so that a result doesn't depend on the chunk. Weights are relative to the
largest score so far (arXiv 1805.02867).
"""

from typing import no_type_check

import numba
import numpy as np

from hybridrt.kernels.cpu.attend import find
from hybridrt.kernels.cpu.attend_tile import NOTHING
from hybridrt.kernels.cpu.bfloat16 import address_of, singles
from hybridrt.kernels.cpu.fours import FOUR, fma4, load4, store4, zeros4
from hybridrt.kernels.cpu.jit import inline, inner, sharing_kernel
from hybridrt.kernels.cpu.vector_math import add, exp, more_of, mul, splat, sub
from hybridrt.kernels.cpu.vectors import pointer

TOKENS = 64  # at a time: their scores stay in the nearest cache


@inline
@no_type_check
def _sub4(a, b):  # pragma: no cover  (compiled, as all below)
    return sub(a[0], b[0]), sub(a[1], b[1]), sub(a[2], b[2]), sub(a[3], b[3])


@inline
@no_type_check
def _add4(a, b):  # pragma: no cover
    return add(a[0], b[0]), add(a[1], b[1]), add(a[2], b[2]), add(a[3], b[3])


@inline
@no_type_check
def _mul4(a, b):  # pragma: no cover
    return mul(a[0], b[0]), mul(a[1], b[1]), mul(a[2], b[2]), mul(a[3], b[3])


@inline
@no_type_check
def _more_of4(a, b):  # pragma: no cover
    return more_of(a[0], b[0]), more_of(a[1], b[1]), more_of(a[2], b[2]), more_of(a[3], b[3])


@inline
@no_type_check
def _exp4(a):  # pragma: no cover
    return exp(a[0]), exp(a[1]), exp(a[2]), exp(a[3])


@inline
@no_type_check
def _products(q, first, k, places, t, size, sums):  # pragma: no cover
    """Of all lanes and four tokens, `first` being where this part of the queries begins."""
    a, b, c, e = sums
    for d in range(size):
        query = load4(q, (first + d) * FOUR)
        a = fma4(splat(k[places[t] + d]), query, a)
        b = fma4(splat(k[places[t + 1] + d]), query, b)
        c = fma4(splat(k[places[t + 2] + d]), query, c)
        e = fma4(splat(k[places[t + 3] + d]), query, e)
    return a, b, c, e


@inner
@no_type_check
def _score(q, k, k_places, size, more, more_places, more_size, count, scores):  # pragma: no cover
    """Scores of some tokens; `more` is the other part of their keys."""
    for t in range(0, count, 4):
        sums = zeros4(), zeros4(), zeros4(), zeros4()
        sums = _products(q, 0, k, k_places, t, size, sums)
        a, b, c, e = _products(q, size, more, more_places, t, more_size, sums)
        store4(a, scores, t * FOUR)
        store4(b, scores, (t + 1) * FOUR)
        store4(c, scores, (t + 2) * FOUR)
        store4(e, scores, (t + 3) * FOUR)


@inner
@no_type_check
def _hide(scores, start, count, seen):  # pragma: no cover
    """Has scores count nothing that a lane doesn't see: tokens from `seen` on."""
    for t in range(count):
        for lane in range(FOUR):
            if start + t >= seen[lane]:
                scores[t * FOUR + lane] = NOTHING


@inner
@no_type_check
def _weigh(scores, count, tops, totals, kept):  # pragma: no cover
    """Turns scores into weights, and says what part is kept of the sums before."""
    before = load4(tops, 0)
    top = before
    for t in range(count):
        top = _more_of4(load4(scores, t * FOUR), top)
    share = _exp4(_sub4(before, top))
    total = _mul4(load4(totals, 0), share)
    for t in range(count):
        weights = _exp4(_sub4(load4(scores, t * FOUR), top))
        total = _add4(total, weights)
        store4(weights, scores, t * FOUR)
    store4(top, tops, 0)
    store4(total, totals, 0)
    store4(share, kept, 0)


@inner
@no_type_check
def _add_values(weights, v, places, size, count, kept, sums):  # pragma: no cover
    """`sums = kept * sums + weights * v`, four numbers of a value at a time."""
    share, whole = load4(kept, 0), size // 4 * 4
    for d in range(0, whole, 4):
        a = _mul4(load4(sums, d * FOUR), share)
        b = _mul4(load4(sums, (d + 1) * FOUR), share)
        c = _mul4(load4(sums, (d + 2) * FOUR), share)
        e = _mul4(load4(sums, (d + 3) * FOUR), share)
        for t in range(count):
            place, weight = places[t] + d, load4(weights, t * FOUR)
            a = fma4(splat(v[place]), weight, a)
            b = fma4(splat(v[place + 1]), weight, b)
            c = fma4(splat(v[place + 2]), weight, c)
            e = fma4(splat(v[place + 3]), weight, e)
        store4(a, sums, d * FOUR)
        store4(b, sums, (d + 1) * FOUR)
        store4(c, sums, (d + 2) * FOUR)
        store4(e, sums, (d + 3) * FOUR)
    for d in range(whole, size):
        a = _mul4(load4(sums, d * FOUR), share)
        for t in range(count):
            a = fma4(splat(v[places[t] + d]), load4(weights, t * FOUR), a)
        store4(a, sums, d * FOUR)


@inner
@no_type_check
def _work(
    worker, workers, q, k, more, v, table, position, queries, heads, sizes, scale, out
):  # fmt: skip  # pragma: no cover
    """Every job whose turn it is: some lanes of a key head."""
    group, size = heads // sizes.kv_heads, sizes.k + sizes.more
    parts = (queries * group + FOUR - 1) // FOUR
    of_lanes = np.zeros(size * FOUR, np.float32)
    scores, sums = np.empty(TOKENS * FOUR, np.float32), np.empty(sizes.v * FOUR, np.float32)
    tops, totals = np.empty(FOUR, np.float32), np.empty(FOUR, np.float32)
    kept, seen = np.empty(FOUR, np.float32), np.zeros(FOUR, np.int64)
    k_places, v_places = np.empty(TOKENS + 3, np.int64), np.empty(TOKENS + 3, np.int64)
    more_places = np.empty(TOKENS + 3, np.int64)
    for job in range(worker, sizes.kv_heads * parts, workers):
        # The last lanes see most, so they come first.
        kv_head, first = job % sizes.kv_heads, (parts - 1 - job // sizes.kv_heads) * FOUR
        lanes = min(FOUR, queries * group - first)
        for lane in range(lanes):
            query, of_group = divmod(first + lane, group)
            at = query * sizes.q_token + (kv_head * group + of_group) * sizes.q_head
            for d in range(size):
                of_lanes[d * FOUR + lane] = q[at + d] * scale
            seen[lane] = position + query + 1
        sums[:], totals[:], tops[:] = 0, 0, NOTHING
        of_scores, of_sums, of_kept = pointer(scores), pointer(sums), pointer(kept)
        for start in range(0, seen[lanes - 1], TOKENS):
            count, block = min(TOKENS, seen[lanes - 1] - start), sizes.block_size
            k_first, v_first = kv_head * sizes.k_head, kv_head * sizes.v_head
            find(table, start, count, block, sizes.k_block, k_first, sizes.k_token, k_places)
            find(table, start, count, block, sizes.v_block, v_first, sizes.v_token, v_places)
            if sizes.more > 0:
                find(table, start, count, block, sizes.more_block, 0, sizes.more_token, more_places)
            _score(
                pointer(of_lanes), k, k_places, sizes.k, more, more_places, sizes.more, count,
                of_scores
            )  # fmt: skip
            if start + count > seen[0]:
                _hide(scores, start, count, seen)
            _weigh(of_scores, count, pointer(tops), pointer(totals), of_kept)
            _add_values(of_scores, v, v_places, sizes.v, count, of_kept, of_sums)
        for lane in range(lanes):
            query, of_group = divmod(first + lane, group)
            at = (query * heads + kv_head * group + of_group) * sizes.v
            share = np.float32(1) / totals[lane]
            for d in range(sizes.v):
                out[at + d] = sums[d * FOUR + lane] * share


@sharing_kernel
@no_type_check
def attend_lanes(
    q, k, more, v, table, position, queries, heads, sizes, scale, out, threads
):  # fmt: skip  # pragma: no cover
    """The queries of a row from `position` on into `out`: queries, heads, values in a row.

    All of these are addresses, of float32 but for the row's page table of int32. A key is
    `[k, more]`, and so is a query. `sizes.window` is of no account.
    """
    group = heads // sizes.kv_heads
    blocks = (position + queries + sizes.block_size - 1) // sizes.block_size
    table = numba.carray(address_of(table), (blocks,), np.int32)
    q, k, more, v = singles(q, 1), singles(k, 1), singles(more, 1), singles(v, 1)
    out = singles(out, queries * heads * sizes.v)
    jobs = sizes.kv_heads * ((queries * group + FOUR - 1) // FOUR)
    workers = min(threads, jobs)
    if workers == 1:
        _work(0, 1, q, k, more, v, table, position, queries, heads, sizes, scale, out)
        return
    for worker in numba.prange(workers):
        _work(
            np.int64(worker), workers, q, k, more, v, table, position, queries, heads, sizes, scale,
            out
        )  # fmt: skip
