"""The gated delta rule for a token or two, and some columns of a head's state.

With the decay e before it, a token is `a = (e k)^T S`, `delta = beta (v - a)`, `y = (e q)^T S +
(q . k) delta` and `S = e S + k delta^T`. So the state is read once for a and y, and changed once.
For two tokens at once the second's are written out: then it is read and changed half as often.
A state's rows begin `width` behind each other, the first at `at`.
"""

from typing import no_type_check

import numpy as np

from hybridrt.kernels.cpu.fours import FOUR, fma4, load4, mul4, store4, zeros4
from hybridrt.kernels.cpu.jit import inline, inner
from hybridrt.kernels.cpu.vector_math import fma, mul, splat, sub, sum_of_lanes
from hybridrt.kernels.cpu.vectors import (
    HAS_REGISTERS,
    LANES,
    load,
    load_some,
    prefetch,
    store,
    store_some,
)

SCRATCH = 6  # vectors of keys, each `size` long: a head's channels and `LANES` more
EIGHT = 2 * FOUR  # columns: of a row that is as long, a state is read as it lies in memory
LATER = 4  # of a row's eight lines, begun to be read while the state before is changed


@inner
@no_type_check
def _prepare_one(
    q, k, decay, at, at_decay, one_a_head, k_dim, size, scratch
):  # pragma: no cover  (compiled, as all below)
    """Leaves `e k`, `e q` and e in `scratch`, and returns `q . k`."""
    qk, e = splat(np.float32(0)), splat(decay[at_decay])
    for i in range(0, k_dim, LANES):
        count = min(LANES, k_dim - i)
        if not one_a_head:
            e = load_some(decay, at_decay + i, count)
        key, query = load_some(k, at + i, count), load_some(q, at + i, count)
        qk = fma(query, key, qk)
        store(mul(e, key), scratch, i)
        store(mul(e, query), scratch, size + i)
        store(e, scratch, 2 * size + i)
    return sum_of_lanes(qk)


@inner
@no_type_check
def _prepare_two(
    q, k, decay, at, next_at, at_decay, next_decay, one_a_head, k_dim, size, scratch
):  # pragma: no cover
    """Leaves `e k`, `e q`, `e e2`, `e e2 k2`, `e e2 q2` and `e2 k` in `scratch`.

    Returns `q . k`, `k2 . (e2 k)`, `q2 . (e2 k)` and `q2 . k2`.
    """
    zero = splat(np.float32(0))
    qk, of_k, of_q, qk_2 = zero, zero, zero, zero
    e, e_2 = splat(decay[at_decay]), splat(decay[next_decay])
    for i in range(0, k_dim, LANES):
        count = min(LANES, k_dim - i)
        if not one_a_head:
            e = load_some(decay, at_decay + i, count)
            e_2 = load_some(decay, next_decay + i, count)
        key, query = load_some(k, at + i, count), load_some(q, at + i, count)
        key_2, query_2 = load_some(k, next_at + i, count), load_some(q, next_at + i, count)
        faded, both = mul(e_2, key), mul(e, e_2)
        qk = fma(query, key, qk)
        of_k, of_q = fma(key_2, faded, of_k), fma(query_2, faded, of_q)
        qk_2 = fma(query_2, key_2, qk_2)
        store(mul(e, key), scratch, i)
        store(mul(e, query), scratch, size + i)
        store(both, scratch, 2 * size + i)
        store(mul(both, key_2), scratch, 3 * size + i)
        store(mul(both, query_2), scratch, 4 * size + i)
        store(faded, scratch, 5 * size + i)
    return sum_of_lanes(qk), sum_of_lanes(of_k), sum_of_lanes(of_q), sum_of_lanes(qk_2)


@inline
@no_type_check
def _correction(values, answer, beta):  # pragma: no cover
    return (
        mul(beta, sub(values[0], answer[0])),
        mul(beta, sub(values[1], answer[1])),
        mul(beta, sub(values[2], answer[2])),
        mul(beta, sub(values[3], answer[3])),
    )


@inner
@no_type_check
def one_token(
    h, at, width, q, k, at_k, decay, at_decay, one_a_head, k_dim, size, scratch, v, at_v, beta, y,
    at_y
):  # fmt: skip  # pragma: no cover
    """One token and `FOUR` columns."""
    qk = _prepare_one(q, k, decay, at_k, at_decay, one_a_head, k_dim, size, scratch)
    of_k, of_q = zeros4(), zeros4()
    for i in range(k_dim):
        row = load4(h, at + i * width)
        of_k = fma4(splat(scratch[i]), row, of_k)
        of_q = fma4(splat(scratch[size + i]), row, of_q)
    delta = _correction(load4(v, at_v), of_k, splat(beta))
    store4(fma4(splat(qk), delta, of_q), y, at_y)
    for i in range(k_dim):
        row = mul4(load4(h, at + i * width), splat(scratch[2 * size + i]))
        store4(fma4(splat(k[at_k + i]), delta, row), h, at + i * width)


@inline
@no_type_check
def _fetch(h, at, width, first, stop):  # pragma: no cover
    """Begins to read some lines of a state's `EIGHT` columns, counted from row to row."""
    for line in range(first, stop):
        row, of_row = divmod(line, EIGHT // LANES)
        prefetch(h, at + row * width + of_row * LANES)


@inner
@no_type_check
def one_token_of_eight(
    h, at, following, width, q, k, at_k, decay, at_decay, one_a_head, k_dim, size, scratch, v, at_v,
    beta, y, at_y
):  # fmt: skip  # pragma: no cover
    """One token and `EIGHT` columns of a state in memory; those `following` come next.

    Memory is waited for only while a state is read. So its first lines are read earlier.
    """
    qk = _prepare_one(q, k, decay, at_k, at_decay, one_a_head, k_dim, size, scratch)
    of_k, of_q, more_of_k, more_of_q = zeros4(), zeros4(), zeros4(), zeros4()
    begun, lines = LATER * k_dim, EIGHT // LANES - LATER
    for i in range(k_dim):
        _fetch(h, at, width, begun + lines * i, begun + lines * (i + 1))
        key, query, place = splat(scratch[i]), splat(scratch[size + i]), at + i * width
        row, more = load4(h, place), load4(h, place + FOUR)
        of_k, of_q = fma4(key, row, of_k), fma4(query, row, of_q)
        more_of_k, more_of_q = fma4(key, more, more_of_k), fma4(query, more, more_of_q)
    delta = _correction(load4(v, at_v), of_k, splat(beta))
    more_delta = _correction(load4(v, at_v + FOUR), more_of_k, splat(beta))
    store4(fma4(splat(qk), delta, of_q), y, at_y)
    store4(fma4(splat(qk), more_delta, more_of_q), y, at_y + FOUR)
    for i in range(k_dim):
        _fetch(h, following, width, LATER * i, LATER * (i + 1))
        faded, key, place = splat(scratch[2 * size + i]), splat(k[at_k + i]), at + i * width
        store4(fma4(key, delta, mul4(load4(h, place), faded)), h, place)
        more = mul4(load4(h, place + FOUR), faded)
        store4(fma4(key, more_delta, more), h, place + FOUR)


@inner
@no_type_check
def two_tokens(
    h, at, width, q, k, at_k, next_k, decay, at_decay, next_decay, one_a_head, k_dim, size,
    scratch, v, at_v, next_v, beta, next_beta, y, at_y, next_y
):  # fmt: skip  # pragma: no cover
    """A token and the next one, and `FOUR` columns."""
    products = _prepare_two(
        q, k, decay, at_k, next_k, at_decay, next_decay, one_a_head, k_dim, size, scratch
    )
    if HAS_REGISTERS:
        _two_of_four(
            h, at, width, k, next_k, k_dim, size, scratch, v, at_v, next_v, beta, next_beta, y,
            at_y, next_y, products
        )  # fmt: skip
    else:
        for d in range(0, FOUR, LANES):
            _two_of_one(
                h, at + d, width, k, next_k, k_dim, size, scratch, v, at_v + d, next_v + d, beta,
                next_beta, y, at_y + d, next_y + d, products
            )  # fmt: skip


@inner
@no_type_check
def _two_of_four(
    h, at, width, k, next_k, k_dim, size, scratch, v, at_v, next_v, beta, next_beta, y, at_y,
    next_y, products
):  # fmt: skip  # pragma: no cover
    """Of all columns at once: 16 sums."""
    qk, second_of_k, second_of_q, qk_2 = products
    of_k, of_q, of_k_2, of_q_2 = zeros4(), zeros4(), zeros4(), zeros4()
    for i in range(k_dim):
        row = load4(h, at + i * width)
        of_k = fma4(splat(scratch[i]), row, of_k)
        of_q = fma4(splat(scratch[size + i]), row, of_q)
        of_k_2 = fma4(splat(scratch[3 * size + i]), row, of_k_2)
        of_q_2 = fma4(splat(scratch[4 * size + i]), row, of_q_2)
    delta = _correction(load4(v, at_v), of_k, splat(beta))
    store4(fma4(splat(qk), delta, of_q), y, at_y)
    of_k_2 = fma4(splat(second_of_k), delta, of_k_2)
    of_q_2 = fma4(splat(second_of_q), delta, of_q_2)
    delta_2 = _correction(load4(v, next_v), of_k_2, splat(next_beta))
    store4(fma4(splat(qk_2), delta_2, of_q_2), y, next_y)
    for i in range(k_dim):
        row = mul4(load4(h, at + i * width), splat(scratch[2 * size + i]))
        row = fma4(splat(scratch[5 * size + i]), delta, row)
        store4(fma4(splat(k[next_k + i]), delta_2, row), h, at + i * width)


@inner
@no_type_check
def _two_of_one(
    h, at, width, k, next_k, k_dim, size, scratch, v, at_v, next_v, beta, next_beta, y, at_y,
    next_y, products
):  # fmt: skip  # pragma: no cover
    """The same of one vector of columns, where that is two registers."""
    qk, second_of_k, second_of_q, qk_2 = products
    of_k = of_q = of_k_2 = of_q_2 = splat(np.float32(0))
    for i in range(k_dim):
        row = load(h, at + i * width)
        of_k = fma(splat(scratch[i]), row, of_k)
        of_q = fma(splat(scratch[size + i]), row, of_q)
        of_k_2 = fma(splat(scratch[3 * size + i]), row, of_k_2)
        of_q_2 = fma(splat(scratch[4 * size + i]), row, of_q_2)
    delta = mul(splat(beta), sub(load(v, at_v), of_k))
    store(fma(splat(qk), delta, of_q), y, at_y)
    of_k_2 = fma(splat(second_of_k), delta, of_k_2)
    of_q_2 = fma(splat(second_of_q), delta, of_q_2)
    delta_2 = mul(splat(next_beta), sub(load(v, next_v), of_k_2))
    store(fma(splat(qk_2), delta_2, of_q_2), y, next_y)
    for i in range(k_dim):
        row = mul(load(h, at + i * width), splat(scratch[2 * size + i]))
        row = fma(splat(scratch[5 * size + i]), delta, row)
        store(fma(splat(k[next_k + i]), delta_2, row), h, at + i * width)


@inner
@no_type_check
def some_columns(
    h, at, width, q, k, at_k, decay, at_decay, one_a_head, k_dim, size, scratch, v, at_v, beta, y,
    at_y, columns
):  # fmt: skip  # pragma: no cover
    """One token and fewer columns than `FOUR`."""
    qk = _prepare_one(q, k, decay, at_k, at_decay, one_a_head, k_dim, size, scratch)
    for d in range(0, columns, LANES):
        count = min(LANES, columns - d)
        of_k, of_q = splat(np.float32(0)), splat(np.float32(0))
        for i in range(k_dim):
            row = load_some(h, at + d + i * width, count)
            of_k = fma(splat(scratch[i]), row, of_k)
            of_q = fma(splat(scratch[size + i]), row, of_q)
        delta = mul(splat(beta), sub(load_some(v, at_v + d, count), of_k))
        store_some(fma(splat(qk), delta, of_q), y, at_y + d, count)
        for i in range(k_dim):
            place = at + d + i * width
            row = mul(load_some(h, place, count), splat(scratch[2 * size + i]))
            store_some(fma(splat(k[at_k + i]), delta, row), h, place, count)
