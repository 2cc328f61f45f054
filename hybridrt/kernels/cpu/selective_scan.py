"""selective_scan in numba: each thread runs its channels through time, the state in cache."""

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
    octets,
    of_dtype,
    singles,
)
from hybridrt.kernels.cpu.fast_exp import LOG2_E, fast_exp
from hybridrt.kernels.cpu.jit import inline, inlined, inner, inner_exact, inner_fast
from hybridrt.kernels.cpu.share import jobs_of, parallel_kernel, share
from hybridrt.kernels.cpu.state_rows import (
    StateRows,
    clear_padding,
    has_initial,
    row_starts,
    sources,
    starts,
    targets,
)
from hybridrt.kernels.cpu.transpose import turn
from hybridrt.kernels.cpu.vector_math import add, exp2, fma, mul, splat, store_sums
from hybridrt.kernels.cpu.vectors import (
    LANES,
    aligned,
    load,
    load_up_to,
    pointer,
    prefetch,
    store,
    store_up_to,
)
from hybridrt.kernels.reference import selective_scan as reference

AHEAD = 4  # tokens, from beginning to read one to using it: each lies in other pages of memory
FEWEST_TOKENS = 16  # of a row, for whose states it is worth to be turned
CHANNELS = 64  # at once: their states, and a token's x and dt, stay in a thread's L1 cache


def selective_scan(
    x: Float[Tensor, "tokens channels"],
    dt: Float[Tensor, "tokens channels"],
    A: Float[Tensor, "channels state_size"],
    B: Float[Tensor, "tokens state_size"],
    C: Float[Tensor, "tokens state_size"],
    D: Float[Tensor, " channels"],
    ssm_state: Float[Tensor, "pages channels state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float[Tensor, "tokens channels"]:
    """See `hybridrt.kernels.selective_scan`."""
    if not {x.dtype, ssm_state.dtype} <= DTYPES.keys():
        return reference.selective_scan(x, dt, A, B, C, D, ssm_state, pages, initial_pages, batch)
    x = x.contiguous()
    dt, A, B, C, D = (part.float().contiguous() for part in (dt, A, B, C, D))
    y = torch.empty(x.shape, dtype=x.dtype)
    _scan(
        *(of_dtype(x), x.data_ptr(), dt.data_ptr(), A.data_ptr(), B.data_ptr(), C.data_ptr()),
        *(D.data_ptr(), StateRows.of(batch, ssm_state, pages, initial_pages)),
        *(of_dtype(ssm_state), ssm_state.data_ptr(), y.data_ptr(), *A.shape),
        numba.get_num_threads(),
    )
    return y


@inner_fast
@no_type_check
def _work(
    worker, workers, like, x, dt, A, B, C, D, rows, state_like, states, y, channels, state_size
):  # fmt: skip  # pragma: no cover  (compiled, as all below)
    """A worker's shares of the channels of all rows, one row after the other, as states lie."""
    begins, tokens = row_starts(rows), starts(rows)
    # A single token needs its states once: if they can stay where they are, all of a worker's
    # channels are taken as a whole.
    whole = (channels + workers * CHANNELS - 1) // (workers * CHANNELS) * CHANNELS
    near, sums = aligned(whole * state_size), aligned(whole)
    lanes, rates_of_lanes = aligned(CHANNELS * LANES), aligned(CHANNELS * LANES)
    for run in range(len(begins) - 1):
        begin, end = begins[run], begins[run + 1]
        is_one = tokens[end] - tokens[begin] == 1 and state_like.itemsize == 4
        size = whole if is_one else CHANNELS
        shares = (channels + size - 1) // size
        # Of each row, since some are long; in turns, so that few shares of many rows are divided.
        share, last = jobs_of((worker + run * shares) % workers, workers, shares)
        while share < last:
            first = share * size
            _run(
                begin, end, first, min(size, channels - first), like, x, dt, A, B, C, D, rows,
                state_like, states, y, channels, state_size, near, sums, lanes, rates_of_lanes
            )  # fmt: skip
            share += 1


@inner_fast
@no_type_check
def _run(
    begin, end, first, count, like, x, dt, A, B, C, D, rows, state_like, states, y, channels,
    state_size, near, sums, lanes, rates_of_lanes
):  # fmt: skip  # pragma: no cover
    """So many channels of a share, from the `first` one on, of rows that go on as one."""
    tokens, given_one = starts(rows), has_initial(rows)
    from_page, to_page = sources(rows), targets(rows)
    by_vectors = state_size == LANES and count % LANES == 0  # as nearly all have
    rates = singles(A + 4 * first * state_size, count * state_size)
    if by_vectors and tokens[end] - tokens[begin] >= FEWEST_TOKENS:
        _turn(rates, rates_of_lanes, len(rates))
    for row in range(begin, end):
        # Of a row that follows it is what the row before it has left, rounded as there.
        source = from_page[row] * rows.stride + first * state_size
        target = to_page[row] * rows.stride + first * state_size
        length, size = tokens[row + 1] - tokens[row], count * state_size
        kept = elements(states + state_like.itemsize * source, size, state_like)
        h = near[:size]
        in_place = length == 1 and state_like.itemsize == 4 and source == target and given_one[row]
        by_lanes = by_vectors and length >= FEWEST_TOKENS
        if in_place:
            h = singles(states + 4 * source, size)
        else:
            if first + count < channels:  # whose states this thread takes next, as a rule
                _fetch(octets(states + state_like.itemsize * (source + size), kept.nbytes))
            if given_one[row]:
                _copy(kept, h, size)
            else:
                h[:] = 0
        if by_lanes:
            _turn(h, lanes, size)
        for t in range(tokens[row], tokens[row + 1]):
            place = t * channels + first
            if t + AHEAD < tokens[row + 1]:
                coming = place + AHEAD * channels
                _fetch(octets(dt + 4 * coming, 4 * count))
                _fetch(octets(x + like.itemsize * coming, like.itemsize * count))
                _fetch(octets(y + like.itemsize * coming, like.itemsize * count))
            given = elements(x + like.itemsize * place, count, like)
            result = elements(y + like.itemsize * place, count, like)
            steps, skip = singles(dt + 4 * place, count), singles(D + 4 * first, count)
            b = singles(B + 4 * t * state_size, state_size)
            c = singles(C + 4 * t * state_size, state_size)
            if by_lanes:
                _step_of_lanes(lanes, given, steps, rates_of_lanes, b, c, skip, result)
            elif by_vectors:
                _step_of_vectors(h, given, steps, rates, b, c, skip, result, sums)
            else:
                _step(h, given, steps, rates, b, c, skip, result, like, state_size)
        if in_place:
            continue
        if by_lanes:
            _turn(lanes, h, size)
        _copy(h, elements(states + state_like.itemsize * target, size, state_like), size)


@parallel_kernel
@no_type_check
def _scan(
    like, x, dt, A, B, C, D, rows, state_like, states, y, channels, state_size, threads
):  # fmt: skip  # pragma: no cover
    clear_padding(rows, y, like.itemsize * channels)
    given = like, x, dt, A, B, C, D, rows, state_like, states, y, channels, state_size
    share(_work, threads, given)


@inlined
@no_type_check
def _fetch(numbers):  # pragma: no cover
    """Begins to read some bytes."""
    place = pointer(numbers)
    for i in range(0, len(numbers), 64):
        prefetch(place, i)


@inlined
@no_type_check
def _step(h, given, steps, rates, b, c, skip, result, like, state_size):  # pragma: no cover
    """One token of a share of the channels."""
    for d in range(len(given)):
        rate = rates[d * state_size : (d + 1) * state_size]
        state = h[d * state_size : (d + 1) * state_size]
        step, value = steps[d], as_float(given[d])
        update, total = step * value, np.float32(0)
        for n in range(state_size):
            new = state[n] * fast_exp(step * rate[n]) + update * b[n]
            state[n] = new
            total += new * c[n]
        result[d] = as_element(total + skip[d] * value, like)


@inline
@no_type_check
def _next(states, rates, d, steps, given, b):  # pragma: no cover
    """The new state of a channel, of one vector."""
    decay = exp2(mul(splat(steps[d] * LOG2_E), load(rates, d * LANES)))
    update = splat(steps[d] * as_float(given[d]))
    prefetch(states, (d + CHANNELS) * LANES)
    new = fma(load(states, d * LANES), decay, mul(update, b))
    store(new, states, d * LANES)
    return new


@inner_exact
@no_type_check
def _step_of_vectors(h, given, steps, rates, b, c, skip, result, sums):  # pragma: no cover
    """The same, where a channel's state is a vector: four channels at a time."""
    states, of_rates, of_sums = pointer(h), pointer(rates), pointer(sums)
    of_b, of_c = load(pointer(b), 0), load(pointer(c), 0)
    for d in range(0, len(given), 4):
        one = mul(_next(states, of_rates, d, steps, given, of_b), of_c)
        two = mul(_next(states, of_rates, d + 1, steps, given, of_b), of_c)
        three = mul(_next(states, of_rates, d + 2, steps, given, of_b), of_c)
        four = mul(_next(states, of_rates, d + 3, steps, given, of_b), of_c)
        store_sums(one, two, three, four, of_sums, d)
    of_x, of_skip, of_result = pointer(given), pointer(skip), pointer(result)
    for d in range(0, len(given), LANES):
        store(fma(load(of_skip, d), load(of_x, d), load(of_sums, d)), of_result, d)


@inner
@no_type_check
def _copy(given, into, size):  # pragma: no cover
    """A state between two dtypes."""
    of_given, of_into = pointer(given), pointer(into)
    for n in range(0, size, LANES):
        store_up_to(load_up_to(of_given, n, size - n), of_into, n, size - n)


@inner
@no_type_check
def _turn(given, into, size):  # pragma: no cover
    """`LANES` channels' numbers of each state side by side, and back."""
    of_given, of_into = pointer(given), pointer(into)
    for at in range(0, size, LANES * LANES):
        turn(of_given, at, LANES, of_into, at, LANES)


@inline
@no_type_check
def _output(states, rates, at, exponents, update, b, c, n):  # pragma: no cover
    """The n-th new state of `LANES` channels, times `c`."""
    place = at + n * LANES
    decay = exp2(mul(exponents, load(rates, place)))
    new = fma(load(states, place), decay, mul(update, splat(b[n])))
    store(new, states, place)
    return mul(new, splat(c[n]))


@inline
@no_type_check
def _four_outputs(states, rates, at, exponents, update, b, c, n):  # pragma: no cover
    """The sum of every fourth one of `LANES` outputs, in the order of `store_sums`."""
    one = _output(states, rates, at, exponents, update, b, c, n)
    one = add(one, _output(states, rates, at, exponents, update, b, c, n + 8))
    other = _output(states, rates, at, exponents, update, b, c, n + 4)
    other = add(other, _output(states, rates, at, exponents, update, b, c, n + 12))
    return add(one, other)


@inner_exact
@no_type_check
def _step_of_lanes(h, given, steps, rates, b, c, skip, result):  # pragma: no cover
    """The same of states and rates that were turned: nothing is added across lanes."""
    states, of_rates, of_b, of_c = pointer(h), pointer(rates), pointer(b), pointer(c)
    of_steps, of_x, of_skip, of_result = (
        pointer(steps),
        pointer(given),
        pointer(skip),
        pointer(result),
    )
    for d in range(0, len(given), LANES):
        step, x, at = load(of_steps, d), load(of_x, d), d * LANES
        exponents, update = mul(step, splat(LOG2_E)), mul(step, x)
        even = _four_outputs(states, of_rates, at, exponents, update, of_b, of_c, 0)
        even = add(even, _four_outputs(states, of_rates, at, exponents, update, of_b, of_c, 2))
        odd = _four_outputs(states, of_rates, at, exponents, update, of_b, of_c, 1)
        odd = add(odd, _four_outputs(states, of_rates, at, exponents, update, of_b, of_c, 3))
        store(fma(load(of_skip, d), x, add(even, odd)), of_result, d)
