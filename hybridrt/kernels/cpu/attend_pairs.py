"""What `attend_tile` does, of bfloat16: keys and values are widened by pairs."""

from typing import no_type_check

from hybridrt.kernels.cpu.attend_tile import TILE, weigh
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
    queries, job, width, k, more, v, places, sizes, softcap, softmax, v_width
):  # fmt: skip  # pragma: no cover
    """A job's split queries: adds to `sums` and `totals`, and raises `tops`, of `softmax`.

    Its `sums: float32[job.heads, v_width]` are split, too. Key heads take turns at a few tokens,
    as these lie in pages.
    """
    # Arrays are counted wherever they are passed on; addresses are not.
    at_k, at_more, at_v = k.ctypes.data, more.ctypes.data, v.ctypes.data
    k_head, v_head = 2 * sizes.k_head, 2 * sizes.v_head
    group = job.heads // job.kv_heads
    for begin in range(0, job.tokens, STEP):
        tile = min(STEP, job.tokens - begin)
        for head in range(job.kv_heads):
            # What is used next is read: the next head's tokens, and behind the last one's the
            # first one's next ones.
            is_last = head + 1 == job.kv_heads
            ahead, leap = (STEP, -head) if is_last else (0, 1)
            _add_tile(
                queries, head * group, group, width, at_k + k_head * head, at_more,
                at_v + v_head * head, places, begin, tile, ahead, k_head * leap, v_head * leap,
                sizes, softcap, softmax, v_width
            )  # fmt: skip


@inner
@no_type_check
def _add_tile(
    queries, head, heads, width, at_k, at_more, at_v, places, begin, tile, ahead, k_leap, v_leap,
    sizes, softcap, softmax, v_width
):  # fmt: skip  # pragma: no cover
    """Some query heads from `head` on, and the tokens of a tile of their key head."""
    at_q, sums = queries.ctypes.data + 4 * width * head, softmax.sums.ctypes.data
    of_k, of_more, of_v = places.k.ctypes.data, places.more.ctypes.data, places.v.ctypes.data
    scores, at_scores = pointer(softmax.scores), softmax.scores.ctypes.data
    tops, totals, kept = pointer(softmax.tops), pointer(softmax.totals), pointer(softmax.kept)
    at_kept = softmax.kept.ctypes.data
    groups = (heads + MOST_HEADS - 1) // MOST_HEADS
    # All heads use some keys, and some lines of values, while the nearest cache has them.
    together = TOGETHER if groups > 1 else STEP
    for near in range(begin, begin + tile, together):
        for group in range(groups):
            first, stop = heads * group // groups, heads * (group + 1) // groups
            for t in range(near, min(near + together, begin + tile), TOKENS[stop - first - 1]):
                score(
                    stop - first, at_q + 4 * width * first, 4 * width, at_k, of_k + 8 * t, sizes.k,
                    at_more, of_more + 8 * t, sizes.more, ahead if group == 0 else 0,
                    k_leap if group == 0 else 0, at_scores + 4 * (TILE * first + t - begin)
                )  # fmt: skip
    weigh(scores, head, heads, tile, softcap, tops, totals, kept)
    if sizes.values_are_keys:
        ahead, v_leap = 0, 0
    d = 0
    while d < sizes.v:
        some = 2 * PAIRS if d + 2 * PAIRS <= sizes.v else min(PAIRS, sizes.v - d)
        for group in range(groups):
            first, stop = heads * group // groups, heads * (group + 1) // groups
            add_values(
                stop - first, some, at_scores + 4 * TILE * first,
                at_kept + 4 * first, at_v + 2 * d, of_v + 8 * begin, tile,
                ahead if group == 0 else 0, v_leap if group == 0 else 0,
                sums + 4 * ((head + first) * v_width + d), 4 * v_width
            )  # fmt: skip
        d += some


@inner
@no_type_check
def join_pairs(sums, heads, width):  # pragma: no cover
    """Puts split sums, `float32[heads, width]`, into their order."""
    for line in range(0, heads * width, PAIRS):
        side_by_side(sums.ctypes.data + 4 * line)
