"""A chunk of a head in `ssd`'s matrix form, by AMX.

AMX multiplies bfloat16. x, B and C are such numbers; what else is multiplied is float32 and taken
apart into three of them, which together are the same number, so that each product is as exact as
one of float32.

All is turned around: y and the parts of decays as `[channels of a head, tokens]` and
`[earlier tokens, tokens]`, so that B and C serve all heads of a group as they were laid once.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from hybridrt.kernels.blocked_matrices import BLOCK as CHUNK
from hybridrt.kernels.cpu.bfloat16 import halves, singles, words
from hybridrt.kernels.cpu.jit import argument, inline, inner
from hybridrt.kernels.cpu.packed_linear import add_products
from hybridrt.kernels.cpu.pairs import cut, store_side_by_side, store_tops
from hybridrt.kernels.cpu.transpose import turn
from hybridrt.kernels.cpu.vector_math import add, exp, fma, less_of, mul, splat, sub
from hybridrt.kernels.cpu.vectors import LANES, aligned, load, pointer, prefetch, store

PLANES = 3
"""Numbers of bfloat16 that together are one of float32."""


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

    Of a group: C as a block `[state_size / 2, CHUNK]` of pairs, B as rows and as blocks
    `[state_size / CHUNK, CHUNK / 2, CHUNK]` of pairs of tokens, and `B C^T: [CHUNK, CHUNK]`. Of a
    head: x turned around; what a state, what is added to it and the decays between tokens are taken
    apart into; dt, running sums of `dt A` and what their rounding left out.
    """

    c_pairs: np.ndarray
    b_rows: np.ndarray
    b_pairs: np.ndarray
    products: np.ndarray
    x: np.ndarray
    state: np.ndarray
    added: np.ndarray
    decays: np.ndarray
    sums: np.ndarray
    turned: np.ndarray
    steps: np.ndarray
    logs: np.ndarray
    rests: np.ndarray
    seen: np.ndarray


@inner
@no_type_check
def make_room(sizes):  # pragma: no cover  (compiled, as all below)
    """A worker's, for all chunks of its heads."""
    pairs, dim = sizes.state_size // 2, sizes.head_dim
    seen = aligned(LANES * LANES)
    for skipped in range(LANES):
        for lane in range(LANES):
            seen[skipped * LANES + lane] = lane >= skipped
    return Room(
        aligned(pairs * CHUNK),
        aligned(CHUNK * pairs),
        aligned(CHUNK * pairs),
        aligned(CHUNK * CHUNK),
        aligned(dim * CHUNK // 2),
        aligned(PLANES * dim * pairs),
        aligned(PLANES * dim * CHUNK // 2),
        aligned(PLANES * CHUNK * CHUNK // 2),
        aligned(dim * CHUNK),
        aligned(dim * CHUNK),
        aligned(CHUNK),
        aligned(CHUNK),
        aligned(CHUNK),
        seen,
    )


@inner
@no_type_check
def lay_group(tiles, given, sizes, room, t, count, group):  # pragma: no cover
    """B and C of a chunk as products need them, and their products; zeros where no token is."""
    size, pairs = sizes.state_size, sizes.state_size // 2
    c_pairs = words(room.c_pairs.ctypes.data, pairs * CHUNK)
    b_rows = words(room.b_rows.ctypes.data, CHUNK * pairs)
    for i in range(count):
        c = words(given.C + 2 * ((t + i) * given.c_stride + group * size), pairs)
        b = words(given.B + 2 * ((t + i) * given.b_stride + group * size), pairs)
        for n in range(pairs):
            c_pairs[n * CHUNK + i] = c[n]
            b_rows[i * pairs + n] = b[n]
    for i in range(count, CHUNK):
        for n in range(pairs):
            c_pairs[n * CHUNK + i] = 0
            b_rows[i * pairs + n] = 0
    rows, to = room.b_rows.ctypes.data, room.b_pairs.ctypes.data
    for part in range(0, size, CHUNK):
        for j in range(0, CHUNK, 2):
            for n in range(part, part + CHUNK, 2 * LANES):
                one = rows + 2 * (j * size + n)
                store_side_by_side(one, one + 2 * size, to)
                to += 4 * 2 * LANES
    add_products(
        tiles, 1, room.c_pairs.ctypes.data, rows, 2 * size, pairs, room.products.ctypes.data, CHUNK,
        0
    )  # fmt: skip


@inner
@no_type_check
def _add_logs(given, sizes, room, t, count, head):  # pragma: no cover
    """Running sums of `dt A`, and what their rounding left out, as in the reference."""
    rate, total = singles(given.A + 4 * head, 1)[0], 0.0
    for i in range(CHUNK):
        step = np.float32(0)
        if i < count:
            step = singles(given.dt + 4 * ((t + i) * sizes.heads + head), 1)[0]
        total += np.float64(step * rate)
        rounded = np.float32(total)
        room.steps[i], room.logs[i] = step, rounded
        room.rests[i] = np.float32(total - np.float64(rounded))


@inline
@no_type_check
def _decay(log, rest, before, rest_before):  # pragma: no cover
    """What is left of what there was before, when the running sums were others; at most 1."""
    return exp(less_of(add(sub(log, before), sub(rest, rest_before)), splat(np.float32(0))))


@inline
@no_type_check
def _apart(number, to, place, plane):  # pragma: no cover
    """Writes the three parts of a number, each `plane` numbers behind the one before it."""
    first = cut(number)
    left = sub(number, first)
    second = cut(left)
    store(first, to, place)
    store(second, to, place + plane)
    store(sub(left, second), to, place + 2 * plane)


@inner
@no_type_check
def _take_apart_decays(given, sizes, room, t, head, y):  # pragma: no cover
    """What each token adds to each later one's y for each number of x: as pairs of tokens.

    Meanwhile it begins to read the next chunk's x, and where this one's y will be written: a head's
    part of a token is too far from the next one's for a processor to see it come.
    """
    dim, first = sizes.head_dim, head * sizes.head_dim
    x, results = pointer(halves(given.x, 1)), pointer(halves(y, 1))
    products, seen = pointer(room.products), pointer(room.seen)
    steps, logs, rests = room.steps, room.logs, room.rests
    of_logs, of_rests = pointer(logs), pointer(rests)
    plane = CHUNK * CHUNK // 2
    to, nothing = pointer(words(room.decays.ctypes.data, PLANES * plane)), splat(np.float32(0))
    for j in range(0, CHUNK, 2):
        for token in range(t + j, t + j + 2):
            for p in range(first, first + dim, 2 * LANES):
                prefetch(x, (token + CHUNK) * given.x_stride + p)
                prefetch(results, token * sizes.heads * dim + p)
        begin = j // LANES * LANES
        for i in range(0, begin, LANES):
            for part in range(PLANES):
                store_tops(nothing, nothing, to, part * plane + j // 2 * CHUNK + i)
        for i in range(begin, CHUNK, LANES):
            log, rest, at = load(of_logs, i), load(of_rests, i), j * CHUNK + i
            one = _decay(log, rest, splat(logs[j]), splat(rests[j]))
            one = mul(mul(one, splat(steps[j])), load(products, at))
            other = _decay(log, rest, splat(logs[j + 1]), splat(rests[j + 1]))
            other = mul(mul(other, splat(steps[j + 1])), load(products, at + CHUNK))
            if i == begin:  # no token is seen by those before it
                one = mul(one, load(seen, (j - begin) * LANES))
                other = mul(other, load(seen, (j + 1 - begin) * LANES))
            for part in range(PLANES):
                store_tops(one, other, to, part * plane + j // 2 * CHUNK + i)
                one, other = sub(one, cut(one)), sub(other, cut(other))


@inner
@no_type_check
def _turn(given, sizes, room, t, count, head):  # pragma: no cover
    """x of a head, turned around."""
    dim, whole = sizes.head_dim, count // LANES * LANES
    x, first = halves(room.x.ctypes.data, dim * CHUNK), t * given.x_stride + head * dim
    of_x, values = pointer(x), pointer(halves(given.x, 1))
    for j in range(0, whole, LANES):
        for p in range(0, dim, LANES):
            place = first + j * given.x_stride + p
            turn(values, place, given.x_stride, of_x, p * CHUNK + j, CHUNK)
    for p in range(dim):
        for j in range(whole, count):
            x[p * CHUNK + j] = values[first + j * given.x_stride + p]
        x[p * CHUNK + count : (p + 1) * CHUNK] = 0


@inner
@no_type_check
def _take_apart_state(room, sizes, h):  # pragma: no cover
    size = sizes.head_dim * sizes.state_size
    to, state = pointer(halves(room.state.ctypes.data, PLANES * size)), pointer(h)
    for n in range(0, size, LANES):
        _apart(load(state, n), to, n, size)


@inner
@no_type_check
def _take_apart_added(room, sizes):  # pragma: no cover
    """What the tokens add to the state, each as much as is left of it behind the last one."""
    size = sizes.head_dim * CHUNK
    x = pointer(halves(room.x.ctypes.data, size))
    to = pointer(halves(room.added.ctypes.data, PLANES * size))
    last, last_rest = splat(room.logs[CHUNK - 1]), splat(room.rests[CHUNK - 1])
    logs, rests, steps = pointer(room.logs), pointer(room.rests), pointer(room.steps)
    for j in range(0, CHUNK, LANES):
        weight = mul(_decay(last, last_rest, load(logs, j), load(rests, j)), load(steps, j))
        for place in range(j, size, CHUNK):
            _apart(mul(load(x, place), weight), to, place, size)


@inner
@no_type_check
def advance(tiles, given, sizes, room, t, count, head, h, y):  # pragma: no cover
    """Takes a head's state on by a chunk, and writes its y."""
    dim, size, pairs = sizes.head_dim, sizes.state_size, sizes.state_size // 2
    _add_logs(given, sizes, room, t, count, head)
    _take_apart_decays(given, sizes, room, t, head, y)
    _turn(given, sizes, room, t, count, head)
    _take_apart_state(room, sizes, h)
    _take_apart_added(room, sizes)
    found, sums = room.sums.ctypes.data, pointer(room.sums)
    state, zero = pointer(h), splat(np.float32(0))
    for part in range(PLANES):
        plane = room.state.ctypes.data + 2 * dim * size * part
        add_products(
            tiles, 1 if part == 0 else 0, room.c_pairs.ctypes.data, plane, 2 * size, pairs, found,
            dim, 0
        )  # fmt: skip
    logs, rests = pointer(room.logs), pointer(room.rests)
    for i in range(0, CHUNK, LANES):
        left = _decay(load(logs, i), load(rests, i), zero, zero)
        for place in range(i, dim * CHUNK, CHUNK):
            store(mul(load(sums, place), left), sums, place)
    for part in range(PLANES):
        plane = room.decays.ctypes.data + 2 * CHUNK * CHUNK * part
        add_products(
            tiles, 0, plane, room.x.ctypes.data, 2 * CHUNK, CHUNK // 2, found, dim, 0
        )  # fmt: skip
    _write_y(given, sizes, room, t, count, head, y)
    last, last_rest = splat(room.logs[CHUNK - 1]), splat(room.rests[CHUNK - 1])
    kept = _decay(last, last_rest, zero, zero)
    for n in range(0, size, CHUNK):
        block = room.b_pairs.ctypes.data + 2 * CHUNK * n
        for part in range(PLANES):
            plane = room.added.ctypes.data + 2 * dim * CHUNK * part
            add_products(
                tiles, 1 if part == 0 else 0, block, plane, 2 * CHUNK, CHUNK // 2, found, dim, 0
            )  # fmt: skip
        for p in range(dim):
            for i in range(0, CHUNK, LANES):
                at = p * size + n + i
                store(fma(load(state, at), kept, load(sums, p * CHUNK + i)), state, at)


@inner
@no_type_check
def _write_y(given, sizes, room, t, count, head, y):  # pragma: no cover
    dim, sums, of_turned = sizes.head_dim, pointer(room.sums), pointer(room.turned)
    for i in range(0, CHUNK, LANES):
        for p in range(0, dim, LANES):
            turn(sums, p * CHUNK + i, CHUNK, of_turned, i * dim + p, dim)
    skip = splat(singles(given.D + 4 * head, 1)[0])
    for i in range(count):
        values = pointer(halves(given.x + 2 * ((t + i) * given.x_stride + head * dim), dim))
        result = pointer(halves(y + 2 * ((t + i) * sizes.heads + head) * dim, dim))
        for p in range(0, dim, LANES):
            total = fma(skip, load(values, p), load(of_turned, i * dim + p))
            store(total, result, p)
