"""What `attend_tile` does, by AMX: scores of bfloat16 queries, and weighted sums of values.

Keys and values are multiplied where they stand, `ROWS` tokens at a time, if these lie in one page
and their size is whole steps; else they are copied. AMX multiplies pairs: neighbouring numbers of a
key, with those of a query. Of values it should add tokens, so each weight is in a pair with zero,
once before and once behind it: the sums of a pair's numbers are made apart, and put in order at the
end. That is twice the products, and less work than to put two tokens' values side by side.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from hybridrt.kernels.cpu.attend_tile import TILE, weigh
from hybridrt.kernels.cpu.bfloat16 import copy_bytes
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.pair_order import PAIRS, side_by_side
from hybridrt.kernels.cpu.pairs import store_in_pairs
from hybridrt.kernels.cpu.tile_registers import ROWS, RUNS
from hybridrt.kernels.cpu.tiles import multiply_rows, multiply_runs
from hybridrt.kernels.cpu.transpose import turn
from hybridrt.kernels.cpu.vector_math import mul, splat
from hybridrt.kernels.cpu.vectors import LANES, aligned, load, pointer, store

assert RUNS * ROWS == TILE, "a tile of tokens is multiplied at once"
assert ROWS == LANES, "scores are turned around in registers"

STEP = 2 * ROWS
"""Numbers of a key, or of a value, that are multiplied at once."""

assert STEP == PAIRS, "sums of pairs are put in order by lines"


@inner
@no_type_check
def steps_of(size):  # pragma: no cover  (compiled, as all below)
    """Whole steps that so many numbers fill."""
    return (size + STEP - 1) // STEP


class Rooms(NamedTuple):
    """Of a worker: packed queries, copied keys, copied values, where both are, sums, weights.

    What isn't float32 is written and read by addresses.
    """

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    runs: np.ndarray
    found: np.ndarray
    weights: np.ndarray


@inner
@no_type_check
def rooms_of(k, more, v):  # pragma: no cover
    """For keys whose two parts have such sizes, and values; what lies between is zeros.

    Each part is copied into a room of its own: NaN of another sequence, times a zero, would be NaN.
    """
    steps = steps_of(k) + steps_of(more)
    keys = aligned(TILE * ROWS * steps)
    if k % STEP > 0 or more % STEP > 0:
        keys[:] = 0
    return Rooms(
        aligned(steps * ROWS * ROWS),
        keys,
        aligned(TILE * ROWS * steps_of(v)),
        np.empty(6 * RUNS, np.int64),
        aligned(TILE * ROWS),
        aligned(2 * ROWS * TILE),
    )


@inner
@no_type_check
def _pack(q, step, heads, size, room, at_room, packed):  # pragma: no cover
    """Copies queries as keys are copied, and turns their pairs around, a step at a time."""
    row, block = steps_of(size) * ROWS, ROWS * ROWS
    for g in range(heads):
        copy_bytes(q + 2 * g * step, at_room + 4 * g * row, 2 * size)
    for n in range(steps_of(size)):
        turn(room, n * ROWS, row, packed, n * block, ROWS)


@inner
@no_type_check
def pack_queries(q, query, step, heads, size, more, rooms):  # pragma: no cover
    """Pairs of numbers of some heads' queries, `step` apart, into `queries: float32[_, ROWS]`.

    `q` is an address, and the first one begins at `query`. It has two parts of even sizes; the
    second one begins with a whole step. Of heads that aren't there, anything is written.
    """
    first, steps = q + 2 * query, steps_of(size)
    keys, packed = rooms.keys, rooms.queries
    _pack(first, step, heads, size, pointer(keys), keys.ctypes.data, pointer(packed))
    if more > 0:
        others, rest = keys[TILE * ROWS * steps :], packed[ROWS * ROWS * steps :]
        _pack(
            first + 2 * size, step, heads, more, pointer(others), others.ctypes.data, pointer(rest)
        )


@inner
@no_type_check
def begin_runs(keys, places, begin, count, token, runs):  # pragma: no cover
    """Where the `count` keys from `begin` on stand; behind the last ones these stand again."""
    for run in range(RUNS):
        t = min(run * ROWS, (count - 1) // ROWS * ROWS)
        runs[2 * run], runs[2 * run + 1] = keys + 2 * places[begin + t], 2 * token


@inner
@no_type_check
def find_runs(
    keys, places, begin, first, count, size, token, block_size, room, runs
):  # fmt: skip  # pragma: no cover
    """Where the `count` keys from `begin` on are read; in `room` if not where they stand.

    `keys` is an address. `first` is the first token's place in its page, or in one before.
    """
    width = steps_of(size) * STEP
    begin_runs(keys, places, begin, count, token, runs)
    for run in range(RUNS):
        t = min(run * ROWS, (count - 1) // ROWS * ROWS)
        if size == width and (first + t) % block_size + ROWS <= block_size:
            continue
        copies = run * ROWS * width
        runs[2 * run], runs[2 * run + 1] = room + 2 * copies, 2 * width
        for row in range(min(ROWS, count - t)):
            key = keys + 2 * places[begin + t + row]
            copy_bytes(key, room + 2 * (copies + row * width), 2 * size)


@inner
@no_type_check
def by_head(found, heads, count, scale, scores):  # pragma: no cover
    """`found: float32[TILE, ROWS]` of `multiply_runs`, scaled, as `attend_tile` has scores.

    Of heads that aren't there, up to `ROWS`, scores are written too.
    """
    factor = splat(scale)
    for t in range(0, count, LANES):
        turn(found, t * ROWS, ROWS, scores, t, TILE)
        for g in range(heads):
            at = g * TILE + t
            store(mul(load(scores, at), factor), scores, at)


@inner
@no_type_check
def _keep(sums, size, heads, kept):  # pragma: no cover
    """`kept * sums`, by head, of whole steps."""
    for g in range(heads):
        if kept[g] != 1:
            share = splat(kept[g])
            for begin in range(g * STEP, size * ROWS, ROWS * STEP):
                for d in range(begin, begin + STEP, LANES):
                    store(mul(load(sums, d), share), sums, d)


@inner
@no_type_check
def attend_by_tiles(
    tiles, job, following, k, more, v, places, coming, sizes, scale, softcap, rooms, softmax
):  # fmt: skip  # pragma: no cover
    """A piece's packed queries: writes `sums`, adds to `totals` and raises `tops` of `softmax`.

    Its `sums: float32[v / STEP, ROWS, STEP]` mean nothing of heads that aren't there. Meanwhile the
    keys that come next are read: at last the `following` job's, which are at the `coming` places.
    """
    # Arrays are counted wherever they are passed on; addresses and pointers are not.
    at_k, at_more, at_v = k.ctypes.data, more.ctypes.data, v.ctypes.data
    k_places, more_places, v_places = pointer(places.k), pointer(places.more), pointer(places.v)
    coming_places, all_runs = pointer(coming.k), rooms.runs
    queries, keys, values = (
        rooms.queries.ctypes.data,
        rooms.keys.ctypes.data,
        rooms.values.ctypes.data,
    )
    runs, more_runs, later_runs = (
        pointer(all_runs),
        pointer(all_runs[2 * RUNS :]),
        pointer(all_runs[4 * RUNS :]),
    )
    at_runs = all_runs.ctypes.data
    at_found, found = rooms.found.ctypes.data, pointer(rooms.found)
    at_weights, weights = rooms.weights.ctypes.data, pointer(rooms.weights)
    tops, totals, kept = pointer(softmax.tops), pointer(softmax.totals), pointer(softmax.kept)
    at_sums, sums, scores = softmax.sums.ctypes.data, pointer(softmax.sums), pointer(softmax.scores)
    k_steps, more_steps, v_steps = steps_of(sizes.k), steps_of(sizes.more), steps_of(sizes.v)
    block = sizes.block_size
    for t in range(0, job.tokens, TILE):
        tile, first = min(TILE, job.tokens - t), job.first + t
        find_runs(at_k, k_places, t, first, tile, sizes.k, sizes.k_token, block, keys, runs)
        multiply_runs(tiles, True, runs, queries, 1, k_steps, at_found)
        if more_steps > 0:
            find_runs(
                at_more, more_places, t, first, tile, sizes.more, sizes.more_token, block,
                keys + 2 * TILE * STEP * k_steps, more_runs
            )  # fmt: skip
            rest = queries + 4 * ROWS * ROWS * k_steps
            multiply_runs(tiles, False, more_runs, rest, 1, more_steps, at_found)
        by_head(found, job.heads, tile, scale, scores)
        weigh(scores, 0, job.heads, tile, softcap, tops, totals, kept)
        for g in range(job.heads):
            for i in range(g * TILE, g * TILE + tile, LANES):
                store_in_pairs(load(scores, i), weights, i, ROWS * TILE)
        if t > 0:
            _keep(sums, v_steps * STEP, job.heads, kept)
        if not sizes.values_are_keys:
            find_runs(at_v, v_places, t, first, tile, sizes.v, sizes.v_token, block, values, runs)
        left, later = job.tokens - t - TILE, at_runs + 8 * 4 * RUNS
        if left > 0:
            begin_runs(at_k, k_places, t + TILE, left, sizes.k_token, later_runs)
        elif following.tokens > 0:
            begin_runs(at_k, coming_places, 0, following.tokens, sizes.k_token, later_runs)
        else:
            later = 0
        multiply_rows(
            tiles, t == 0, at_runs, tile, at_weights, 4 * TILE, 4 * ROWS * TILE, ROWS, v_steps,
            at_sums, later
        )  # fmt: skip
    for step in range(v_steps):
        for g in range(job.heads):
            side_by_side(at_sums + 4 * STEP * (step * ROWS + g))
