"""Queries of some heads and a tile of tokens: scores, weights, and sums of values.

Four heads and four tokens, or four vectors of values, are taken at a time: their 16 sums stay in
registers, and what is read is used four times; of two or three heads that are left, two. A tile's
tokens begin at `places[t]` of a cache; behind its last, it is repeated three times.
"""

from typing import no_type_check

import numpy as np

from hybridrt.kernels.cpu.fast_exp import fast_exp
from hybridrt.kernels.cpu.fours import FOUR, fma4, load4, mul4, store4, zeros4
from hybridrt.kernels.cpu.jit import inline, inlined, inner, inner_sums
from hybridrt.kernels.cpu.vector_math import (
    add,
    exp,
    fma,
    larger,
    largest_lane,
    mul,
    splat,
    store_sums,
    sub,
    sum_of_lanes,
)
from hybridrt.kernels.cpu.vectors import LANES, load, load_some, prefetch, store

TILE = 64  # tokens at most: their scores and keys stay in the nearest caches
AHEAD = 16  # tokens, from beginning to read one to using it
NOTHING = np.float32(-1e30)  # below every score; exp gives about 1e-38


@inner
@no_type_check
def first_seen(position, window, chunked):  # pragma: no cover  (compiled, as all below)
    """The first token that one sees; see `hybridrt.kernels.reference.gather.Reach`."""
    if window == 0:
        return np.int64(0)
    if chunked:
        return position // window * window
    return max(position - window + 1, 0)


@inlined
@no_type_check
def capped(score, softcap):  # pragma: no cover
    """`softcap * tanh(score / softcap)`."""
    x = score / softcap
    e = fast_exp(np.float32(-2) * abs(x))
    return np.copysign(softcap * (np.float32(1) - e) / (np.float32(1) + e), x)


@inline
@no_type_check
def _tokens(keys, places, t, d):  # pragma: no cover
    return (
        load(keys, places[t] + d),
        load(keys, places[t + 1] + d),
        load(keys, places[t + 2] + d),
        load(keys, places[t + 3] + d),
    )


@inline
@no_type_check
def _tokens_end(keys, places, t, d, count):  # pragma: no cover
    return (
        load_some(keys, places[t] + d, count),
        load_some(keys, places[t + 1] + d, count),
        load_some(keys, places[t + 2] + d, count),
        load_some(keys, places[t + 3] + d, count),
    )


@inline
@no_type_check
def _by_four(q, at, width, k, sums):  # pragma: no cover
    """Four queries, `width` apart, times four tokens."""
    return (
        fma4(load(q, at), k, sums[0]),
        fma4(load(q, at + width), k, sums[1]),
        fma4(load(q, at + 2 * width), k, sums[2]),
        fma4(load(q, at + 3 * width), k, sums[3]),
    )


@inline
@no_type_check
def _four_heads(q, at, width, keys, places, t, size, sums):  # pragma: no cover
    whole = size // LANES * LANES
    for d in range(0, whole, LANES):
        sums = _by_four(q, at + d, width, _tokens(keys, places, t, d), sums)
    if whole < size:
        k = _tokens_end(keys, places, t, whole, size - whole)
        sums = _by_four(q, at + whole, width, k, sums)
    return sums


@inline
@no_type_check
def _by_two(q, at, width, k, sums):  # pragma: no cover
    """Two queries, `width` apart, times four tokens."""
    return fma4(load(q, at), k, sums[0]), fma4(load(q, at + width), k, sums[1])


@inline
@no_type_check
def _two_heads(q, at, width, keys, places, t, size, sums):  # pragma: no cover
    whole = size // LANES * LANES
    for d in range(0, whole, LANES):
        sums = _by_two(q, at + d, width, _tokens(keys, places, t, d), sums)
    if whole < size:
        k = _tokens_end(keys, places, t, whole, size - whole)
        sums = _by_two(q, at + whole, width, k, sums)
    return sums


@inline
@no_type_check
def _one_head(q, at, keys, places, t, size, sums):  # pragma: no cover
    whole = size // LANES * LANES
    for d in range(0, whole, LANES):
        sums = fma4(load(q, at + d), _tokens(keys, places, t, d), sums)
    if whole < size:
        k = _tokens_end(keys, places, t, whole, size - whole)
        sums = fma4(load(q, at + whole), k, sums)
    return sums


@inline
@no_type_check
def fetch(pages, places, first, stop, size, line):  # pragma: no cover
    """Begins to read some tokens; `line` elements are a line of memory."""
    for t in range(first, stop):
        for d in range(0, size, line):
            prefetch(pages, places[t] + d)


@inner
@no_type_check
def score(
    q, heads, width, count, k, places, size, more, more_places, more_size, scores, left, line
):
    # pragma: no cover
    """Scores of the tile's tokens, by head; `more`: the other part of keys."""
    second = width - (more_size + LANES - 1) // LANES * LANES  # where that stands in a query
    for t in range(0, count, 4):
        fetch(k, places, t + AHEAD, min(t + AHEAD + 4, left), size, line)
        g = 0
        while g + 4 <= heads:
            at, into = g * width, g * TILE + t
            sums = (zeros4(), zeros4(), zeros4(), zeros4())
            sums = _four_heads(q, at, width, k, places, t, size, sums)
            sums = _four_heads(q, at + second, width, more, more_places, t, more_size, sums)
            a, b, c, d = sums
            store_sums(a[0], a[1], a[2], a[3], scores, into)
            store_sums(b[0], b[1], b[2], b[3], scores, into + TILE)
            store_sums(c[0], c[1], c[2], c[3], scores, into + 2 * TILE)
            store_sums(d[0], d[1], d[2], d[3], scores, into + 3 * TILE)
            g += 4
        while g + 2 <= heads:
            at, into = g * width, g * TILE + t
            pair = _two_heads(q, at, width, k, places, t, size, (zeros4(), zeros4()))
            pair = _two_heads(q, at + second, width, more, more_places, t, more_size, pair)
            a, b = pair
            store_sums(a[0], a[1], a[2], a[3], scores, into)
            store_sums(b[0], b[1], b[2], b[3], scores, into + TILE)
            g += 2
        while g < heads:
            a = _one_head(q, g * width, k, places, t, size, zeros4())
            a = _one_head(q, g * width + second, more, more_places, t, more_size, a)
            store_sums(a[0], a[1], a[2], a[3], scores, g * TILE + t)
            g += 1


@inner_sums
@no_type_check
def weigh(scores, first_head, heads, count, softcap, tops, totals, kept):  # pragma: no cover
    """Turns scores into weights, and says what part is kept of the sums before.

    Only `tops` and `totals` have heads before the `first_head`.
    """
    padded = (count + LANES - 1) // LANES * LANES
    for g in range(heads):
        first, stop = g * TILE, g * TILE + padded
        for t in range(first + count, stop):
            scores[t] = NOTHING
        if softcap > 0:
            for t in range(first, first + count):
                scores[t] = capped(scores[t], softcap)
        high = load(scores, first)
        for t in range(first + LANES, stop, LANES):
            high = larger(load(scores, t), high)
        head = first_head + g
        top = max(tops[head], largest_lane(high))
        tops_vector, total = splat(top), splat(np.float32(0))
        for t in range(first, stop, LANES):
            weights = exp(sub(load(scores, t), tops_vector))
            total = add(total, weights)
            store(weights, scores, t)
        kept[g] = fast_exp(tops[head] - top)
        totals[head] = totals[head] * kept[g] + sum_of_lanes(total)
        tops[head] = top


@inner
@no_type_check
def add_values(
    weights, heads, v, places, size, count, kept, sums, width, left, line
):  # pragma: no cover
    """`sums = kept * sums + weights @ v`, by head."""
    whole = size // FOUR * FOUR
    for d in range(0, whole, FOUR):
        g = 0
        while g + 4 <= heads:
            at, of = g * width + d, g * TILE
            a = mul4(load4(sums, at), splat(kept[g]))
            b = mul4(load4(sums, at + width), splat(kept[g + 1]))
            c = mul4(load4(sums, at + 2 * width), splat(kept[g + 2]))
            e = mul4(load4(sums, at + 3 * width), splat(kept[g + 3]))
            for t in range(count):
                if g == 0 and t + AHEAD < left:
                    for i in range(d, d + FOUR, line):
                        prefetch(v, places[t + AHEAD] + i)
                value = load4(v, places[t] + d)
                a = fma4(splat(weights[of + t]), value, a)
                b = fma4(splat(weights[of + TILE + t]), value, b)
                c = fma4(splat(weights[of + 2 * TILE + t]), value, c)
                e = fma4(splat(weights[of + 3 * TILE + t]), value, e)
            store4(a, sums, at)
            store4(b, sums, at + width)
            store4(c, sums, at + 2 * width)
            store4(e, sums, at + 3 * width)
            g += 4
        while g + 2 <= heads:
            at, of = g * width + d, g * TILE
            a = mul4(load4(sums, at), splat(kept[g]))
            b = mul4(load4(sums, at + width), splat(kept[g + 1]))
            for t in range(count):
                if g == 0 and t + AHEAD < left:
                    for i in range(d, d + FOUR, line):
                        prefetch(v, places[t + AHEAD] + i)
                value = load4(v, places[t] + d)
                a = fma4(splat(weights[of + t]), value, a)
                b = fma4(splat(weights[of + TILE + t]), value, b)
            store4(a, sums, at)
            store4(b, sums, at + width)
            g += 2
        while g < heads:
            a = mul4(load4(sums, g * width + d), splat(kept[g]))
            for t in range(count):
                if g == 0 and t + AHEAD < left:
                    for i in range(d, d + FOUR, line):
                        prefetch(v, places[t + AHEAD] + i)
                a = fma4(splat(weights[g * TILE + t]), load4(v, places[t] + d), a)
            store4(a, sums, g * width + d)
            g += 1
    for d in range(whole, size, LANES):
        some = min(LANES, size - d)
        for g in range(heads):
            one = mul(load(sums, g * width + d), splat(kept[g]))
            for t in range(count):
                value = load_some(v, places[t] + d, some)
                one = fma(splat(weights[g * TILE + t]), value, one)
            store(one, sums, g * width + d)
