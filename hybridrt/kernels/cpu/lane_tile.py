"""Queries in lanes and some tokens: scores, weights, and sums of values.

Each query, with each of its heads, has a lane of four vectors. A key's number is then one factor
for all lanes, and so is a value's; largest scores and sums of weights need nothing of other lanes.
What is of a token, or of a number of a value, is one row of all lanes.
"""

from typing import no_type_check

from hybridrt.kernels.cpu.attend_tile import NOTHING, capped, fetch
from hybridrt.kernels.cpu.fours import FOUR, fma4, load4, store4, zeros4
from hybridrt.kernels.cpu.jit import inline, inner
from hybridrt.kernels.cpu.vector_math import add, exp, more_of, mul, splat, sub
from hybridrt.kernels.cpu.vectors import pointer

AHEAD = 64  # tokens, from beginning to read one to using it
LINE = 16  # numbers in a line of memory


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
def score(
    q, k, k_places, size, more, more_places, more_size, v, v_places, v_size, count, left, scores
):  # fmt: skip  # pragma: no cover
    """Scores of some tokens; `more` is the other part of their keys.

    Begins to read those that come next, of `left` in all, and their values.
    """
    of_k, of_more, of_v = pointer(k), pointer(more), pointer(v)
    for t in range(0, count, 4):
        coming, stop = t + AHEAD, min(t + AHEAD + 4, left)
        fetch(of_k, k_places, coming, stop, size, LINE)
        fetch(of_more, more_places, coming, stop, more_size, LINE)
        fetch(of_v, v_places, coming, stop, v_size, LINE)
        sums = zeros4(), zeros4(), zeros4(), zeros4()
        sums = _products(q, 0, k, k_places, t, size, sums)
        a, b, c, e = _products(q, size, more, more_places, t, more_size, sums)
        store4(a, scores, t * FOUR)
        store4(b, scores, (t + 1) * FOUR)
        store4(c, scores, (t + 2) * FOUR)
        store4(e, scores, (t + 3) * FOUR)


@inner
@no_type_check
def cap(scores, count, softcap):  # pragma: no cover
    """Scores between `-softcap` and `softcap`."""
    for i in range(count):
        scores[i] = capped(scores[i], softcap)


@inner
@no_type_check
def hide(scores, start, count, first, stop):  # pragma: no cover
    """Has scores count nothing where a lane doesn't see: before `first` and from `stop` on."""
    for t in range(count):
        for lane in range(FOUR):
            if start + t < first[lane] or start + t >= stop[lane]:
                scores[t * FOUR + lane] = NOTHING


@inner
@no_type_check
def weigh(scores, count, tops, totals, kept):  # pragma: no cover
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
def add_values(weights, v, places, size, count, kept, sums):  # pragma: no cover
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
