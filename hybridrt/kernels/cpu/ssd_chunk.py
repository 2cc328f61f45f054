"""A chunk of a head in `ssd`'s matrix form, by AMX.

AMX multiplies bfloat16. x, B and C are such numbers; what else is multiplied is float32 and taken
apart into several of them. States are kept, so what is added to them is taken apart into three,
which together are the same number: each product is as exact as one of float32. y is rounded to
bfloat16, so two are enough of what it is made from.

A register holds `LANES` channels of a head side by side, so all that has channels lies in blocks
of so many, states too: as `[head_dim / LANES, state_size, LANES]`, turned around.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from hybridrt.kernels.blocked_matrices import BLOCK as CHUNK
from hybridrt.kernels.cpu.bfloat16 import halves, singles, words
from hybridrt.kernels.cpu.jit import argument, inline, inner
from hybridrt.kernels.cpu.pairs import cut, load_both, store_tops
from hybridrt.kernels.cpu.tile_registers import ROWS, RUNS
from hybridrt.kernels.cpu.tiles import add_near, multiply_runs
from hybridrt.kernels.cpu.transpose import turn
from hybridrt.kernels.cpu.vector_math import add, exp2, fma, less_of, mul, splat, sub
from hybridrt.kernels.cpu.vectors import LANES, aligned, load, pointer, prefetch, store

STEP = 2 * ROWS
"""Of the numbers that are summed up: what a register has of each vector."""

LOG2_E = 1.4426950408889634
"""Decays are powers of two: of sums of `dt A` that many times, as all sums in float64."""

OF_Y, OF_STATES = 2, 3
"""Numbers of bfloat16 for one of float32: of 16 bits, or of all of them."""


@argument
class Sizes(NamedTuple):
    """Of what stands in a token, and of a state."""

    heads: int
    head_dim: int
    groups: int
    state_size: int


@argument
class Inputs(NamedTuple):
    """Addresses of what `ssd` is given, and numbers from a token to the next."""

    x: int
    x_stride: int
    dt: int
    A: int
    B: int
    b_stride: int
    C: int
    c_stride: int
    D: int


class Room(NamedTuple):
    """What a worker needs for a chunk.

    Of a group: `c` and `b: [CHUNK, state_size]`, B as `b_turned: [state_size, CHUNK]` and as a
    block of pairs `b_pairs: [state_size / 2, CHUNK]`, and `products: [CHUNK, CHUNK]`, C B^T. Of a
    head: what is left between tokens, `decays: [OF_Y, CHUNK, CHUNK]`; blocks of pairs of tokens,
    x and what a token `added` to the state, and of pairs of a `state`; of y what comes
    `from_state` and `from_tokens: [head_dim / LANES, CHUNK, LANES]`; dt, running sums of `dt A`
    and what their rounding left out, what is `left` of the state at each token, and `weights` of
    what each adds to the last one's.
    """

    c: np.ndarray
    b: np.ndarray
    b_turned: np.ndarray
    b_pairs: np.ndarray
    products: np.ndarray
    decays: np.ndarray
    x: np.ndarray
    added: np.ndarray
    state: np.ndarray
    from_state: np.ndarray
    from_tokens: np.ndarray
    steps: np.ndarray
    logs: np.ndarray
    rests: np.ndarray
    left: np.ndarray
    weights: np.ndarray
    seen: np.ndarray
    runs: np.ndarray


@inner
@no_type_check
def make_room(sizes):  # pragma: no cover  (compiled, as all below)
    """A worker's, for all chunks of its heads."""
    dim, pairs = sizes.head_dim, sizes.state_size // 2
    decays, seen = aligned(OF_Y * CHUNK * CHUNK // 2), aligned(LANES * LANES)
    decays[:] = 0  # of later tokens nothing is ever written
    for row in range(LANES):
        for lane in range(LANES):
            seen[row * LANES + lane] = lane <= row
    return Room(
        aligned(CHUNK * pairs),
        aligned(CHUNK * pairs),
        aligned(CHUNK * pairs),
        aligned(CHUNK * pairs),
        aligned(CHUNK * CHUNK),
        decays,
        aligned(dim * CHUNK // 2),
        aligned(OF_STATES * dim * CHUNK // 2),
        aligned(OF_Y * LANES * pairs),
        aligned(dim * CHUNK),
        aligned(dim * CHUNK),
        aligned(CHUNK),
        aligned(CHUNK),
        aligned(CHUNK),
        aligned(CHUNK),
        aligned(CHUNK),
        seen,
        np.empty(2 * RUNS, np.int64),
    )


@inner
@no_type_check
def _copy(given, stride, t, count, pairs, to):  # pragma: no cover
    """Rows of so many pairs from an address on, one behind the other; zeros where no token is."""
    into, zero = pointer(singles(to, 1)), splat(np.float32(0))
    for i in range(CHUNK):
        row = pointer(singles(given + 2 * (t + i) * stride, 1))
        for n in range(0, pairs, LANES):
            store(load(row, n) if i < count else zero, into, i * pairs + n)


@inner
@no_type_check
def lay_group(tiles, given, sizes, room, t, count, group):  # pragma: no cover
    """B and C of a chunk as products need them, and their products."""
    size, pairs = sizes.state_size, sizes.state_size // 2
    _copy(given.B + 2 * group * size, given.b_stride, t, count, pairs, room.b.ctypes.data)
    _copy(given.C + 2 * group * size, given.c_stride, t, count, pairs, room.c.ctypes.data)
    rows, by_pair = pointer(room.b), pointer(room.b_pairs)
    for n in range(0, pairs, LANES):
        for j in range(0, CHUNK, LANES):
            turn(rows, j * pairs + n, pairs, by_pair, n * CHUNK + j, CHUNK)
    of_words = pointer(words(room.b_pairs.ctypes.data, 1))
    turned = pointer(halves(room.b_turned.ctypes.data, 1))
    for n in range(pairs):
        for j in range(0, CHUNK, LANES):
            one, other = load_both(of_words, n * CHUNK + j)
            store(one, turned, 2 * n * CHUNK + j)
            store(other, turned, (2 * n + 1) * CHUNK + j)
    add_near(
        tiles, True, room.b_pairs.ctypes.data, room.c.ctypes.data, 2 * size, pairs,
        room.products.ctypes.data, CHUNK
    )  # fmt: skip


@inner
@no_type_check
def turn_state(sizes, h, turned, back):  # pragma: no cover
    """A head's state between `h: [head_dim, state_size]` and `turned`; pointers."""
    size = sizes.state_size
    for p in range(0, sizes.head_dim, LANES):
        for n in range(0, size, LANES):
            if back:
                turn(turned, p * size + n * LANES, LANES, h, p * size + n, size)
            else:
                turn(h, p * size + n, size, turned, p * size + n * LANES, LANES)


@inline
@no_type_check
def _decay(log, rest, before, rest_before):  # pragma: no cover
    """What is left of what there was before, when the running sums were others; at most 1."""
    return exp2(less_of(add(sub(log, before), sub(rest, rest_before)), splat(np.float32(0))))


@inner
@no_type_check
def _add_logs(given, sizes, room, t, count, head):  # pragma: no cover
    """Running sums of `dt A`, as in the reference, and all that depends on one token of them."""
    rate, total = singles(given.A + 4 * head, 1)[0], 0.0
    for i in range(CHUNK):
        step = np.float32(0)
        if i < count:
            step = singles(given.dt + 4 * ((t + i) * sizes.heads + head), 1)[0]
        total += np.float64(step * rate) * LOG2_E
        rounded = np.float32(total)
        room.steps[i], room.logs[i] = step, rounded
        room.rests[i] = np.float32(total - np.float64(rounded))
    steps, logs, rests = pointer(room.steps), pointer(room.logs), pointer(room.rests)
    left, weights, zero = pointer(room.left), pointer(room.weights), splat(np.float32(0))
    last, last_rest = splat(room.logs[CHUNK - 1]), splat(room.rests[CHUNK - 1])
    for i in range(0, CHUNK, LANES):
        log, rest = load(logs, i), load(rests, i)
        store(_decay(log, rest, zero, zero), left, i)
        store(mul(_decay(last, last_rest, log, rest), load(steps, i)), weights, i)


@inner
@no_type_check
def _take_apart_decays(given, sizes, room, t, count, head, y):  # pragma: no cover
    """What is left at each token of what each earlier one adds, times C B^T.

    Meanwhile it begins to read the next chunk's x, and where this one's y will be written: a head's
    part of a token is too far from the next one's for a processor to see it come.
    """
    dim, first = sizes.head_dim, head * sizes.head_dim
    x, results = pointer(halves(given.x, 1)), pointer(halves(y, 1))
    products, seen, steps = pointer(room.products), pointer(room.seen), pointer(room.steps)
    logs, rests = pointer(room.logs), pointer(room.rests)
    to = pointer(halves(room.decays.ctypes.data, OF_Y * CHUNK * CHUNK))
    for i in range(count):
        for p in range(first, first + dim, 2 * LANES):
            prefetch(x, (t + i + CHUNK) * given.x_stride + p)
            prefetch(results, (t + i) * sizes.heads * dim + p)
        log, rest, end = splat(room.logs[i]), splat(room.rests[i]), i // LANES * LANES
        for j in range(0, end + LANES, LANES):
            share = _decay(log, rest, load(logs, j), load(rests, j))
            share = mul(mul(share, load(steps, j)), load(products, i * CHUNK + j))
            if j == end:  # no token is seen by those before it
                share = mul(share, load(seen, (i - end) * LANES))
            tops = cut(share)
            store(tops, to, i * CHUNK + j)
            store(sub(share, tops), to, (CHUNK + i) * CHUNK + j)


@inner
@no_type_check
def _lay_tokens(given, sizes, room, t, count, head):  # pragma: no cover
    """x by pairs of tokens, and what each adds to the state behind the last one, taken apart."""
    dim, plane = sizes.head_dim, CHUNK // 2 * LANES
    x, first = pointer(halves(given.x, 1)), t * given.x_stride + head * dim
    pairs, weights = pointer(words(room.x.ctypes.data, 1)), room.weights
    added = pointer(words(room.added.ctypes.data, 1))
    for j in range(0, CHUNK, 2):
        weight, next_weight = splat(weights[j]), splat(weights[j + 1])
        place = first + j * given.x_stride
        for p in range(0, dim, LANES):
            one = other = splat(np.float32(0))
            if j < count:
                one = load(x, place + p)
            if j + 1 < count:
                other = load(x, place + given.x_stride + p)
            store_tops(one, other, pairs, p * CHUNK // 2 + j // 2 * LANES)
            one, other = mul(one, weight), mul(other, next_weight)
            to = OF_STATES * (p * CHUNK // 2) + j // 2 * LANES
            for _ in range(OF_STATES):
                store_tops(one, other, added, to)
                one, other = sub(one, cut(one)), sub(other, cut(other))
                to += plane


@inner
@no_type_check
def _take_apart_state(room, size, h):  # pragma: no cover
    """A block by pairs; meanwhile what is left of it at the last token takes its place."""
    to, left = pointer(words(room.state.ctypes.data, 1)), splat(room.left[CHUNK - 1])
    for n in range(0, size, 2):
        one, other, at = load(h, n * LANES), load(h, (n + 1) * LANES), n // 2 * LANES
        store_tops(one, other, to, at)
        store_tops(sub(one, cut(one)), sub(other, cut(other)), to, at + size // 2 * LANES)
        store(mul(one, left), h, n * LANES)
        store(mul(other, left), h, (n + 1) * LANES)


@inner
@no_type_check
def _multiply(tiles, anew, room, rows, row_bytes, planes, count, steps, sums):  # pragma: no cover
    """Adds products of `CHUNK` rows with `count` blocks, one of each plane."""
    runs = room.runs
    for run in range(RUNS):
        runs[2 * run], runs[2 * run + 1] = rows + run * ROWS * row_bytes, row_bytes
    multiply_runs(tiles, anew, pointer(runs), planes, count, steps, sums)


@inner
@no_type_check
def advance(tiles, given, sizes, room, t, count, head, h, y):  # pragma: no cover
    """Takes a head's state on by a chunk, and writes its y; `h` is the state's address."""
    dim, size = sizes.head_dim, sizes.state_size
    _add_logs(given, sizes, room, t, count, head)
    _lay_tokens(given, sizes, room, t, count, head)
    _take_apart_decays(given, sizes, room, t, count, head, y)
    at_c, at_b, state = room.c.ctypes.data, room.b_turned.ctypes.data, room.state.ctypes.data
    found, more = room.from_state.ctypes.data, room.from_tokens.ctypes.data
    decays, x, added = room.decays.ctypes.data, room.x.ctypes.data, room.added.ctypes.data
    for p in range(0, dim, LANES):
        own = h + 4 * p * size
        _take_apart_state(room, size, pointer(singles(own, 1)))
        sums, steps = found + 4 * p * CHUNK, size // STEP
        _multiply(tiles, True, room, at_c, 2 * size, state, OF_Y, steps, sums)
        planes, steps = added + 2 * OF_STATES * p * CHUNK, CHUNK // STEP
        for n in range(0, size, CHUNK):
            rows, sums = at_b + 2 * n * CHUNK, own + 4 * n * LANES
            _multiply(tiles, False, room, rows, 2 * CHUNK, planes, OF_STATES, steps, sums)
    for part in range(OF_Y):
        for p in range(0, dim, LANES):
            rows, sums = decays + 2 * part * CHUNK * CHUNK, more + 4 * p * CHUNK
            _multiply(
                tiles, part == 0, room, rows, 2 * CHUNK, x + 2 * p * CHUNK, 1, CHUNK // STEP, sums
            )
    _write_y(given, sizes, room, t, count, head, y)


@inner
@no_type_check
def _write_y(given, sizes, room, t, count, head, y):  # pragma: no cover
    dim, skip = sizes.head_dim, splat(singles(given.D + 4 * head, 1)[0])
    from_state, from_tokens, left = pointer(room.from_state), pointer(room.from_tokens), room.left
    x, results = pointer(words(room.x.ctypes.data, 1)), pointer(halves(y, 1))
    token_size = sizes.heads * dim
    for i in range(0, count, 2):
        kept, then = splat(left[i]), splat(left[i + 1])
        to = (t + i) * token_size + head * dim
        for p in range(0, dim, LANES):
            at = p * CHUNK + i * LANES
            one, other = load_both(x, p * CHUNK // 2 + i // 2 * LANES)
            total = fma(load(from_state, at), kept, load(from_tokens, at))
            store(fma(skip, one, total), results, to + p)
            if i + 1 < count:
                total = fma(load(from_state, at + LANES), then, load(from_tokens, at + LANES))
                store(fma(skip, other, total), results, to + token_size + p)
