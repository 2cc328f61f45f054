"""What `attend_tile` does, of bfloat16: keys and values are widened by pairs."""

from typing import no_type_check

from hybridrt.kernels.cpu.attend_tile import weigh
from hybridrt.kernels.cpu.bfloat16 import as_float
from hybridrt.kernels.cpu.jit import inner, inner_sums
from hybridrt.kernels.cpu.pair_tile import (
    MOST_HEADS,
    PAIRS,
    TOKENS,
    add_values,
    score,
    side_by_side,
)
from hybridrt.kernels.cpu.vectors import LANES, pointer

STEP = 32
"""Tokens, of which first keys are read and then values: all stay in the nearest cache."""

TOGETHER = 8
"""Tokens whose keys all heads use one after the other."""

AHEAD = 32
"""Tokens, from beginning to read one to using it."""


@inner
@no_type_check
def width_of(size):  # pragma: no cover  (compiled, as all below)
    """Numbers in whole lines."""
    return (size + PAIRS - 1) // PAIRS * PAIRS


@inner_sums
@no_type_check
def _split(numbers, begin, size, scale, queries, at):  # pragma: no cover
    """The numbers of a query's part, scaled: in each line the first of pairs before the others."""
    for line in range(at, at + size, PAIRS):
        given, some = begin + line - at, min(PAIRS, size - line + at)
        for i in range(some // 2):
            queries[line + i] = as_float(numbers[given + 2 * i]) * scale
            queries[line + LANES + i] = as_float(numbers[given + 2 * i + 1]) * scale
        if some % 2 == 1:
            queries[line + some // 2] = as_float(numbers[given + some - 1]) * scale


@inner
@no_type_check
def split_queries(q, query, heads, sizes, scale, queries, width):  # pragma: no cover
    """Some heads' queries from the place `query` on, into `queries: float32[heads, width]`."""
    for g in range(heads):
        begin = query + g * sizes.q_head
        _split(q, begin, sizes.k, scale, queries, g * width)
        _split(q, begin + sizes.k, sizes.more, scale, queries, g * width + width_of(sizes.k))


@inner
@no_type_check
def attend_by_pairs(
    queries, heads, width, k, more, v, places, count, sizes, softcap, softmax, v_width
):  # fmt: skip  # pragma: no cover
    """A piece's split queries: adds to `sums` and `totals`, and raises `tops`, of `softmax`.

    Its `sums: float32[heads, v_width]` are split, too.
    """
    # Arrays are counted wherever they are passed on; addresses are not.
    at_q, at_k, at_more, at_v = (
        queries.ctypes.data,
        k.ctypes.data,
        more.ctypes.data,
        v.ctypes.data,
    )
    of_k, of_more, of_v = places.k.ctypes.data, places.more.ctypes.data, places.v.ctypes.data
    scores, at_scores = pointer(softmax.scores), softmax.scores.ctypes.data
    tops, totals, kept = pointer(softmax.tops), pointer(softmax.totals), pointer(softmax.kept)
    at_kept, sums = softmax.kept.ctypes.data, softmax.sums.ctypes.data
    row = 4 * len(softmax.scores) // len(softmax.tops)
    groups = (heads + MOST_HEADS - 1) // MOST_HEADS
    ahead = 0 if sizes.values_are_keys else AHEAD
    for begin in range(0, count, STEP):
        tile = min(STEP, count - begin)
        # All heads use some keys, and some lines of values, while the nearest cache has them.
        for near in range(begin, begin + tile, TOGETHER):
            for group in range(groups):
                first, stop = heads * group // groups, heads * (group + 1) // groups
                for t in range(near, min(near + TOGETHER, begin + tile), TOKENS[stop - first - 1]):
                    score(
                        stop - first, at_q + 4 * width * first, 4 * width, at_k, of_k + 8 * t,
                        sizes.k, at_more, of_more + 8 * t, sizes.more, AHEAD if group == 0 else 0,
                        at_scores + row * first + 4 * (t - begin)
                    )  # fmt: skip
        weigh(scores, heads, tile, softcap, tops, totals, kept)
        for d in range(0, sizes.v, 2 * PAIRS):
            some = min(2 * PAIRS, sizes.v - d)
            lines = (some + PAIRS - 1) // PAIRS
            for group in range(groups):
                first, stop = heads * group // groups, heads * (group + 1) // groups
                add_values(
                    stop - first, lines, some - (lines - 1) * PAIRS, at_scores + row * first,
                    at_kept + 4 * first, at_v + 2 * d, of_v + 8 * begin, tile,
                    ahead if group == 0 else 0, sums + 4 * (first * v_width + d), 4 * v_width
                )  # fmt: skip


@inner
@no_type_check
def join_pairs(sums, heads, width):  # pragma: no cover
    """Puts split sums, `float32[heads, width]`, into their order."""
    for line in range(0, heads * width, PAIRS):
        side_by_side(sums.ctypes.data + 4 * line)
