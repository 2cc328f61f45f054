"""ssd in numba: the recurrence itself, each row of a state kept in the nearest cache, in its page.

On a CPU this takes less time than the matrix form, whose larger products it doesn't have, but where
AMX makes them: longer rows are its (`ssd_amx`).
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.bfloat16 import (
    DTYPES,
    as_element,
    as_float,
    elements,
    of_dtype,
    singles,
)
from hybridrt.kernels.cpu.jit import inline, inlined, inner_fast
from hybridrt.kernels.cpu.share import jobs_of, parallel_kernel, share
from hybridrt.kernels.cpu.ssd_amx import end_of_chunks, scan_chunks
from hybridrt.kernels.cpu.ssd_chunk import CHUNK
from hybridrt.kernels.cpu.state_rows import (
    StateRows,
    begin_state,
    clear_padding,
    row_starts,
    starts,
    targets,
)
from hybridrt.kernels.cpu.tile_registers import multiplies_tiles
from hybridrt.kernels.cpu.vector_math import fma, mul, splat, store_sums
from hybridrt.kernels.cpu.vectors import (
    HAS_REGISTERS,
    LANES,
    aligned,
    load,
    pointer,
    prefetch,
    store,
)
from hybridrt.kernels.reference import ssd as reference

AHEAD = 8
"""Rows of a state in memory, from beginning to read one to using it."""


def ssd(
    x: Float[Tensor, "tokens heads head_dim"],
    dt: Float[Tensor, "tokens heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    chunk_size: int,
) -> Float[Tensor, "tokens heads head_dim"]:
    """See `hybridrt.kernels.ssd`. `chunk_size` is of no use here."""
    if not {x.dtype, ssm_state.dtype} <= DTYPES.keys():
        return reference.ssd(x, dt, A, B, C, D, ssm_state, pages, initial_pages, batch, chunk_size)
    x, B, C = (_whole(part.to(x.dtype)) for part in (x, B, C))
    dt, A, D = (part.float().contiguous() for part in (dt, A, D))
    y = torch.empty(x.shape, dtype=x.dtype)
    by_tiles, threads = _takes_tiles(x, B, batch), numba.get_num_threads()
    given = (
        *(x.data_ptr(), x.stride(0), dt.data_ptr(), A.data_ptr()),
        *(B.data_ptr(), B.stride(0), C.data_ptr(), C.stride(0), D.data_ptr()),
        *(StateRows.of(batch, ssm_state, pages, initial_pages), of_dtype(ssm_state)),
        *(ssm_state.data_ptr(), y.data_ptr(), *x.shape[1:], *B.shape[1:]),
    )
    if by_tiles:
        scan_chunks(*given, threads)
    _scan(of_dtype(x), *given, by_tiles, threads)
    return y


def _takes_tiles(
    x: Float[Tensor, "tokens heads head_dim"],
    B: Float[Tensor, "tokens groups state_size"],
    batch: Rows,
) -> bool:
    """Whether there may be rows for AMX, of a size that it can multiply."""
    may_be = x.dtype == torch.bfloat16 and batch.num_decodes < batch.num_rows
    return may_be and x.shape[2] % LANES == 0 and B.shape[2] % CHUNK == 0 and multiplies_tiles()


def _whole(part: Float[Tensor, "tokens heads dim"]) -> Float[Tensor, "tokens heads dim"]:
    """The same, each token's elements one behind the other."""
    return part if part.stride()[1:] == (part.shape[2], 1) else part.contiguous()


@inner_fast
@no_type_check
def _work(
    worker, workers, like, x, x_stride, dt, A, B, b_stride, C, c_stride, D, rows, state_like,
    states, y, heads, head_dim, groups, state_size, by_tiles
):  # fmt: skip  # pragma: no cover  (compiled, as all below)
    """A worker's share of heads of all rows, one row after the other, as their states lie."""
    tokens, begins, size = starts(rows), row_starts(rows), head_dim * state_size
    b = aligned(2 * state_size).reshape((2, state_size))
    c = aligned(2 * state_size).reshape((2, state_size))
    sums = aligned(2 * head_dim).reshape((2, head_dim))
    steps, kept = np.empty(2, np.float32), np.empty(2, np.float32)
    scratch = aligned(0 if state_like.itemsize == 4 else size)
    for run in range(len(begins) - 1):
        first, last = begins[run], begins[run + 1]
        if by_tiles:
            first = end_of_chunks(tokens, first, last)
        # Of each row, since some are long; in turns, so that few heads of many rows are divided.
        head, end = jobs_of((worker + run * heads) % workers, workers, heads)
        while head < end:
            _run(
                first, last, head, like, x, x_stride, dt, A, B, b_stride, C, c_stride, D, rows,
                state_like, states, y, heads, head_dim, groups, state_size, b, c, sums, steps, kept,
                scratch
            )  # fmt: skip
            head += 1


@inner_fast
@no_type_check
def _run(
    first, last, head, like, x, x_stride, dt, A, B, b_stride, C, c_stride, D, rows, state_like,
    states, y, heads, head_dim, groups, state_size, b, c, sums, steps, kept, scratch
):  # fmt: skip  # pragma: no cover
    """A head of rows that go on as one."""
    item, size, tokens, target = like.itemsize, head_dim * state_size, starts(rows), targets(rows)
    by_vectors = state_size % LANES == 0 and head_dim % 4 == 0  # as all models have it
    in_place = state_like.itemsize == 4
    group = head // (heads // groups) * state_size
    rate, skip = singles(A + 4 * head, 1)[0], singles(D + 4 * head, 1)[0]
    for row in range(first, last):
        place = states + state_like.itemsize * (target[row] * rows.stride + head * size)
        page = elements(place, size, state_like)
        h = singles(place, size) if in_place else scratch
        begin_state(h, rows, row, states, state_like, head, size)
        t, end = tokens[row], tokens[row + 1]
        while t < end:
            turn = min(2, end - t) if by_vectors else 1
            for i in range(turn):
                given = elements(B + item * ((t + i) * b_stride + group), state_size, like)
                asked = elements(C + item * ((t + i) * c_stride + group), state_size, like)
                for n in range(state_size):
                    b[i, n], c[i, n] = as_float(given[n]), as_float(asked[n])
                steps[i] = singles(dt + 4 * ((t + i) * heads + head), 1)[0]
                kept[i] = np.exp(steps[i] * rate)
            values = elements(x + item * (t * x_stride + head * head_dim), head_dim, like)
            result = elements(y + item * (t * heads + head) * head_dim, head_dim, like)
            if turn == 2:
                later = x + item * ((t + 1) * x_stride + head * head_dim)
                more = elements(later, head_dim, like)
                next_result = elements(
                    y + item * ((t + 1) * heads + head) * head_dim, head_dim, like
                )
                _two_steps(
                    h, values, more, steps, kept, b, c, skip, result, next_result, like, sums
                )  # fmt: skip
            elif by_vectors:
                _step_of_vectors(
                    h, values, steps[0], kept[0], b[0], c[0], skip, result, like, sums[0]
                )  # fmt: skip
            else:
                _step(h, values, steps[0], kept[0], b[0], c[0], skip, result, like)
            t += turn
        if not in_place:
            for n in range(size):
                page[n] = as_element(h[n], state_like)


@parallel_kernel
@no_type_check
def _scan(
    like, x, x_stride, dt, A, B, b_stride, C, c_stride, D, rows, state_like, states, y, heads,
    head_dim, groups, state_size, by_tiles, threads
):  # fmt: skip  # pragma: no cover
    clear_padding(rows, y, like.itemsize * heads * head_dim)
    given = (
        like, x, x_stride, dt, A, B, b_stride, C, c_stride, D, rows, state_like, states, y, heads,
        head_dim, groups, state_size, by_tiles
    )  # fmt: skip
    share(_work, threads, given)


@inlined
@no_type_check
def _step(h, values, step, kept, b, c, skip, result, like):  # pragma: no cover
    """One token of one head."""
    size = len(b)
    for p in range(len(values)):
        state = h[p * size : (p + 1) * size]
        value = as_float(values[p])
        update, total = step * value, np.float32(0)
        for n in range(size):
            new = state[n] * kept + update * b[n]
            state[n] = new
            total += new * c[n]
        result[p] = as_element(total + skip * value, like)


@inline
@no_type_check
def _next(row, kept, update, b, c, total):  # pragma: no cover
    """A vector of a state behind a token, and `total` with what it gives."""
    new = fma(row, kept, mul(update, b))
    return new, fma(new, c, total)


@inline
@no_type_check
def _take_on(states, place, ahead, kept, update, b, c, total):  # pragma: no cover
    """Takes a vector of a state on by a token, and returns its `total`.

    Has what lies so far `ahead` read, which is the next head's behind the last row.
    """
    prefetch(states, place + ahead)
    new, total = _next(load(states, place), kept, update, b, c, total)
    store(new, states, place)
    return total


@inline
@no_type_check
def _take_on_twice(states, place, kept, updates, b, c, totals):  # pragma: no cover
    """The same by two tokens, of each of which there is one of everything."""
    row, total = _next(load(states, place), kept[0], updates[0], b[0], c[0], totals[0])
    row, second = _next(row, kept[1], updates[1], b[1], c[1], totals[1])
    store(row, states, place)
    return total, second


@inlined
@no_type_check
def _step_of_vectors(h, values, step, kept, b, c, skip, result, like, sums):  # pragma: no cover
    """The same, where a state's rows are vectors: four rows at a time."""
    size, keeping = len(b), splat(np.float32(kept))
    states, of_b, of_c, of_sums = pointer(h), pointer(b), pointer(c), pointer(sums)
    for p in range(0, len(values), 4):
        first, second = splat(step * as_float(values[p])), splat(step * as_float(values[p + 1]))
        third, fourth = splat(step * as_float(values[p + 2])), splat(step * as_float(values[p + 3]))
        at, then = p * size, (p + 2) * size
        if HAS_REGISTERS:
            one, two, three, four = _four_rows(
                states, at, size, keeping, first, second, third, fourth, of_b, of_c
            )
        else:
            one, two = _two_rows(states, at, size, keeping, first, second, of_b, of_c)
            three, four = _two_rows(states, then, size, keeping, third, fourth, of_b, of_c)
        store_sums(one, two, three, four, of_sums, p)
    for p in range(len(values)):
        result[p] = as_element(sums[p] + skip * as_float(values[p]), like)


@inline
@no_type_check
def _four_rows(
    states, at, size, kept, first, second, third, fourth, b, c
):  # fmt: skip  # pragma: no cover
    """Takes rows on by a token; returns their sums. They have 12 registers at once."""
    zero, ahead = splat(np.float32(0)), AHEAD * size
    one, two, three, four = zero, zero, zero, zero
    for n in range(0, size, LANES):
        given, asked, place = load(b, n), load(c, n), at + n
        one = _take_on(states, place, ahead, kept, first, given, asked, one)
        two = _take_on(states, place + size, ahead, kept, second, given, asked, two)
        three = _take_on(states, place + 2 * size, ahead, kept, third, given, asked, three)
        four = _take_on(states, place + 3 * size, ahead, kept, fourth, given, asked, four)
    return one, two, three, four


@inline
@no_type_check
def _two_rows(states, at, size, kept, first, second, b, c):  # pragma: no cover
    """The same of two, where a vector is two registers."""
    one = two = splat(np.float32(0))
    for n in range(0, size, LANES):
        given, asked, place = load(b, n), load(c, n), at + n
        one = _take_on(states, place, AHEAD * size, kept, first, given, asked, one)
        two = _take_on(states, place + size, AHEAD * size, kept, second, given, asked, two)
    return one, two


@inline
@no_type_check
def _updates(steps, values, more, p):  # pragma: no cover
    return splat(steps[0] * as_float(values[p])), splat(steps[1] * as_float(more[p]))


@inner_fast
@no_type_check
def _two_steps(
    h, values, more, steps, kept, b, c, skip, result, next_result, like, sums
):  # fmt: skip  # pragma: no cover
    """A token and the next one, for which a state is read and written once."""
    size, keeping = b.shape[1], (splat(kept[0]), splat(kept[1]))
    states, of_b, of_c, of_sums = pointer(h), pointer(b), pointer(c), pointer(sums)
    for p in range(0, len(values), 4):
        first, second = _updates(steps, values, more, p), _updates(steps, values, more, p + 1)
        third, fourth = _updates(steps, values, more, p + 2), _updates(steps, values, more, p + 3)
        at = p * size
        if HAS_REGISTERS:
            one, two, three, four = _four_rows_twice(
                states, at, size, keeping, first, second, third, fourth, of_b, of_c
            )
        else:
            one = _row_twice(states, at, size, keeping, first, of_b, of_c)
            two = _row_twice(states, at + size, size, keeping, second, of_b, of_c)
            three = _row_twice(states, at + 2 * size, size, keeping, third, of_b, of_c)
            four = _row_twice(states, at + 3 * size, size, keeping, fourth, of_b, of_c)
        store_sums(one[0], two[0], three[0], four[0], of_sums, p)
        store_sums(one[1], two[1], three[1], four[1], of_sums, len(values) + p)
    for p in range(len(values)):
        result[p] = as_element(sums[0, p] + skip * as_float(values[p]), like)
        next_result[p] = as_element(sums[1, p] + skip * as_float(more[p]), like)


@inline
@no_type_check
def _four_rows_twice(
    states, at, size, kept, first, second, third, fourth, b, c
):  # fmt: skip  # pragma: no cover
    """Takes rows on by two tokens; returns their sums. They have 22 registers at once."""
    zeros = splat(np.float32(0)), splat(np.float32(0))
    one, two, three, four = zeros, zeros, zeros, zeros
    for n in range(0, size, LANES):
        given = (load(b, n), load(b, size + n))
        asked, place = (load(c, n), load(c, size + n)), at + n
        one = _take_on_twice(states, place, kept, first, given, asked, one)
        two = _take_on_twice(states, place + size, kept, second, given, asked, two)
        three = _take_on_twice(states, place + 2 * size, kept, third, given, asked, three)
        four = _take_on_twice(states, place + 3 * size, kept, fourth, given, asked, four)
    return one, two, three, four


@inline
@no_type_check
def _row_twice(states, at, size, kept, update, b, c):  # pragma: no cover
    """The same of one, where a vector is two registers."""
    sums = splat(np.float32(0)), splat(np.float32(0))
    for n in range(0, size, LANES):
        given = (load(b, n), load(b, size + n))
        asked = (load(c, n), load(c, size + n))
        sums = _take_on_twice(states, at + n, kept, update, given, asked, sums)
    return sums
