"""What `attend_tile` does, of bfloat16: keys and values are widened by pairs, or multiplied so.

`by_pairs`, where it is an argument, says whether queries and weights are bfloat16, too.
"""

from typing import no_type_check

from hybridrt.kernels.cpu.attend_jobs import ASKED, GRAIN
from hybridrt.kernels.cpu.attend_tile import TILE, weigh
from hybridrt.kernels.cpu.bfloat16 import copy_bytes, halves
from hybridrt.kernels.cpu.jit import apart, inline, inner
from hybridrt.kernels.cpu.pair_order import PAIRS, one_behind_another, side_by_side
from hybridrt.kernels.cpu.pair_tile import (
    MOST_SUMMED,
    Multiplied,
    Widened,
    make_add_values,
    make_score,
)
from hybridrt.kernels.cpu.pair_tile_halves import WidenedByHalves
from hybridrt.kernels.cpu.pairs import BY_PAIRS
from hybridrt.kernels.cpu.vector_math import mul, splat
from hybridrt.kernels.cpu.vectors import (
    HAS_REGISTERS,
    IS_ZEN,
    LANES,
    load,
    load_up_to,
    pointer,
    store,
)

STEP = 32
"""Tokens, of which first keys are read and then values: all stay in the nearest cache. A piece's
last ones, fewer than `GRAIN`, are taken with those before them: so few ask for too little of what
comes next."""

BY_TURNS = HAS_REGISTERS and not IS_ZEN
"""Whether pages of all key heads are asked for by turns, as is faster on Intel's processors: also
with AMX, where weights, in larger runs, come as fast in a row."""

TOGETHER = 8
"""Tokens whose keys all heads use one after the other."""

_WIDENED = Widened if HAS_REGISTERS else WidenedByHalves

OF_WIDENED, OF_MULTIPLIED = _WIDENED.tokens, Multiplied.tokens
"""Tokens whose scores are taken at once, by the number of heads less one."""

_score, _score_by_pairs = make_score(_WIDENED), make_score(Multiplied)
_add, _add_by_pairs = make_add_values(_WIDENED), make_add_values(Multiplied)


@inner
@no_type_check
def width_of(size):  # pragma: no cover  (compiled, as all below)
    """Numbers in whole lines."""
    return (size + PAIRS - 1) // PAIRS * PAIRS


@inner
@no_type_check
def split(numbers, begin, size, scale, queries, at):  # pragma: no cover
    """The numbers of a query's part, scaled: in each line the first of pairs before the others."""
    given, into, times = pointer(numbers), pointer(queries), splat(scale)
    for i in range(0, width_of(size), LANES):
        store(mul(load_up_to(given, begin + i, size - i), times), into, at + i)
    for line in range(at, at + width_of(size), PAIRS):
        one_behind_another(queries.ctypes.data + 4 * line)


@inner
@no_type_check
def split_queries(q, query, heads, sizes, scale, queries, width):  # pragma: no cover
    """Some heads' queries from the place `query` on, into `queries: float32[heads, width]`."""
    for g in range(heads):
        begin = query + g * sizes.q_head
        split(q, begin, sizes.k, scale, queries, g * width)
        split(q, begin + sizes.k, sizes.more, scale, queries, g * width + width_of(sizes.k))


@inner
@no_type_check
def copy_queries(q, query, heads, sizes, queries, width):  # pragma: no cover
    """The same of bfloat16 at an address, as they are. What fills up lines are zeros already."""
    for g in range(heads):
        given = q + 2 * (query + g * sizes.q_head)
        row = queries.ctypes.data + 4 * g * width
        copy_bytes(given, row, 2 * sizes.k)
        copy_bytes(given + 2 * sizes.k, row + 2 * width_of(sizes.k), 2 * sizes.more)


@inner
@no_type_check
def _scale(scores, heads, tile, scale):  # pragma: no cover
    """Scores of queries that weren't scaled."""
    times = splat(scale)
    for g in range(heads):
        for t in range(g * TILE, g * TILE + tile, LANES):
            store(mul(load(scores, t), times), scores, t)


@inner
@no_type_check
def _narrow(at_scores, scores, heads, tile):  # pragma: no cover
    """Weights as bfloat16, a row in the first half of where it was."""
    for g in range(heads):
        row = pointer(halves(at_scores + 4 * TILE * g, TILE))
        for t in range(0, tile, LANES):
            store(load(scores, TILE * g + t), row, t)


@apart
@no_type_check
def score_tile(
    by_pairs, heads, q, q_bytes, keys, places, size, more, more_places, more_size, tokens, ahead,
    leap, scores
):  # fmt: skip  # pragma: no cover
    """Writes scores of some query heads of a key head; as `score` does, of a tile's tokens."""
    multiplied = BY_PAIRS and by_pairs != 0
    most = len(OF_MULTIPLIED) if multiplied else len(OF_WIDENED)
    groups = (heads + most - 1) // most
    # All heads use some keys while the nearest cache has them.
    together = TOGETHER if groups > 1 else STEP
    for near in range(0, tokens, together):
        for group in range(groups):
            first, stop = heads * group // groups, heads * (group + 1) // groups
            count = stop - first - 1
            at_once = OF_MULTIPLIED[count] if multiplied else OF_WIDENED[count]
            for t in range(near, min(near + together, tokens), at_once):
                to_read = (ahead, leap) if group == 0 else (0, 0)
                if BY_PAIRS and multiplied:
                    _score_by_pairs(
                        stop - first, q + q_bytes * first, q_bytes, keys, places + 8 * t, size,
                        more, more_places + 8 * t, more_size, *to_read,
                        scores + 4 * (TILE * first + t)
                    )  # fmt: skip
                else:
                    _score(
                        stop - first, q + q_bytes * first, q_bytes, keys, places + 8 * t, size,
                        more, more_places + 8 * t, more_size, *to_read,
                        scores + 4 * (TILE * first + t)
                    )  # fmt: skip


@apart
@no_type_check
def add_tile(
    by_pairs, heads, size, weights, kept, values, places, tokens, ahead, leap, sums, sum_bytes
):  # fmt: skip  # pragma: no cover
    """Adds weighted values of a tile of tokens, as `add_values` does, of `size` numbers."""
    groups, d = (heads + MOST_SUMMED - 1) // MOST_SUMMED, 0
    takes_two = HAS_REGISTERS or heads == 1  # lines, whose sums are four vectors of each head
    while d < size:
        numbers = 2 * PAIRS if takes_two and d + 2 * PAIRS <= size else min(PAIRS, size - d)
        for group in range(groups):
            first, stop = heads * group // groups, heads * (group + 1) // groups
            to_read = (ahead, leap) if group == 0 else (0, 0)
            if BY_PAIRS and by_pairs != 0:
                _add_by_pairs(
                    stop - first, numbers, weights + 4 * TILE * first, kept + 4 * first,
                    values + 2 * d, places, tokens, *to_read, sums + sum_bytes * first + 4 * d,
                    sum_bytes
                )  # fmt: skip
            else:
                _add(
                    stop - first, numbers, weights + 4 * TILE * first, kept + 4 * first,
                    values + 2 * d, places, tokens, *to_read, sums + sum_bytes * first + 4 * d,
                    sum_bytes
                )  # fmt: skip
        d += numbers


@inline
@no_type_check
def takes_turns(sizes):  # pragma: no cover
    """Whether pages of all key heads are asked for by turns, as `_take_turns` says."""
    return BY_TURNS and not sizes.values_are_keys and sizes.more == 0


@inner
@no_type_check
def most_asked(sizes):  # pragma: no cover
    """Places that it writes at most, and those behind them that a longer step names: they say
    anything, as memory that isn't there may be asked for."""
    return STEP * sizes.kv_heads + GRAIN if takes_turns(sizes) else 0


@inner
@no_type_check
def _take_turns(places, begin, kv_heads, head_stride):  # pragma: no cover
    """Writes from `ASKED` on where `STEP` tokens from `begin` on are, of all key heads, in the
    order in which they are asked for.

    `GRAIN` tokens of a head lie one behind another, about a page of them. So of each such run one
    token is asked for, and then of each the next.
    """
    given, asked, at = pointer(places[begin:]), pointer(places[ASKED:]), 0
    for t in range(GRAIN):
        for first in range(t, STEP, GRAIN):
            place = given[first]
            for n in range(kv_heads):
                asked[at + n] = place + n * head_stride
            at += kv_heads


@inline
@no_type_check
def _behind(tokens):  # pragma: no cover
    """Where places of later tokens begin, behind so many, and behind what is read with the last."""
    return (tokens + GRAIN - 1) // GRAIN * GRAIN


@inner
@no_type_check
def read_on(job, places, following, coming):  # pragma: no cover
    """Puts the next job's first tokens where those behind this one's last would be."""
    if following.tokens > 0:
        end = _behind(job.tokens)
        places.k[end : end + STEP] = coming.k[:STEP]
        places.v[end : end + STEP] = coming.v[:STEP]


@inner
@no_type_check
def attend_by_pairs(
    by_pairs, queries, job, width, k, more, v, places, sizes, scale, softcap, softmax, v_width
):  # fmt: skip  # pragma: no cover
    """A job's split queries, or copied ones, whose scores `scale` is for: adds to `sums` and
    `totals`, and raises `tops`, of `softmax`.

    Its `sums: float32[job.heads, v_width]` are split, too. Key heads take turns at a few tokens,
    as these lie in pages.
    """
    # Arrays are counted wherever they are passed on; addresses are not.
    at_k, at_more, at_v = k.ctypes.data, more.ctypes.data, v.ctypes.data
    of_k, of_more, of_v = places.k.ctypes.data, places.more.ctypes.data, places.v.ctypes.data
    q, sums = queries.ctypes.data, softmax.sums.ctypes.data
    scores, at_scores = pointer(softmax.scores), softmax.scores.ctypes.data
    tops, totals, kept = pointer(softmax.tops), pointer(softmax.totals), pointer(softmax.kept)
    by_turns = takes_turns(sizes)
    at_kept, group = softmax.kept.ctypes.data, job.heads // job.kv_heads
    begin = 0
    while begin < job.tokens:
        left = job.tokens - begin
        tile = left if left < STEP + GRAIN else STEP
        behind = _behind(tile)
        if by_turns:
            _take_turns(places.k, begin + behind, job.kv_heads, sizes.k_head)
            _take_turns(places.v, begin + behind, job.kv_heads, sizes.v_head)
        for n in range(job.kv_heads):
            # Meanwhile what is used next is read: the next head's tokens, and behind the last
            # one's the first one's next ones; or by turns a part of what all heads use next. Where
            # values are keys they are asked for twice: what comes too fast the processor drops.
            ahead, leap = (0, 2) if n + 1 < job.kv_heads else (behind, -2 * n)
            if by_turns:
                ahead, leap = ASKED + STEP * n - begin, -2 * n
            head = n * group
            score_tile(
                by_pairs, group, q + 4 * width * head, 4 * width, at_k + 2 * sizes.k_head * n,
                of_k + 8 * begin, sizes.k, at_more, of_more + 8 * begin, sizes.more, tile, ahead,
                leap * sizes.k_head, at_scores
            )  # fmt: skip
            if by_pairs:
                _scale(scores, group, tile, scale)
            weigh(scores, head, group, tile, softcap, tops, totals, kept)
            if by_pairs:
                _narrow(at_scores, scores, group, tile)
            add_tile(
                by_pairs, group, sizes.v, at_scores, at_kept, at_v + 2 * sizes.v_head * n,
                of_v + 8 * begin, tile, ahead, leap * sizes.v_head, sums + 4 * v_width * head,
                4 * v_width
            )  # fmt: skip
        begin += tile


@inner
@no_type_check
def join_pairs(sums, heads, width):  # pragma: no cover
    """Puts split sums, `float32[heads, width]`, into their order."""
    for line in range(0, heads * width, PAIRS):
        side_by_side(sums.ctypes.data + 4 * line)
