"""route in numba: one call where torch needs ten, and the router's weight is read as it is."""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import DTYPES, copy_bytes, elements, integers, of_dtype, singles
from hybridrt.kernels.cpu.gated import times_sigmoid
from hybridrt.kernels.cpu.jit import inline, inner, inner_exact
from hybridrt.kernels.cpu.share import jobs_of, parallel_kernel, share, threads_for
from hybridrt.kernels.cpu.vector_math import add, div, exp, fma, splat, sub, sum_of_lanes
from hybridrt.kernels.cpu.vectors import LANES, aligned, load, load_up_to, pointer, store_up_to
from hybridrt.kernels.reference.route import Routing

SMALL = 500_000  # products: 20 us, not worth a second thread
TOKENS = 32  # whose experts are chosen in 20 us
FEWEST_SHARED = 16  # tokens of a worker: of fewer, a weight is read from far for each
NEAR = 2**17  # weights that stay in the second cache while tokens pass


def takes(x: Float[Tensor, "tokens hidden"], weight: Float[Tensor, "experts hidden"]) -> bool:
    """Whether it reads these."""
    return x.dtype in DTYPES and weight.dtype in DTYPES and weight.is_contiguous()


def route(
    x: Float[Tensor, "tokens hidden"],
    weight: Float[Tensor, "experts hidden"],
    correction_bias: Float32[Tensor, " experts"] | None,
    routing: Routing,
) -> tuple[Int64[Tensor, "tokens top_k"], Float32[Tensor, "tokens top_k"]]:
    """See `hybridrt.kernels.route`, without groups."""
    x = x.contiguous()
    (tokens, hidden), experts = x.shape, len(weight)
    logits = torch.empty(tokens, experts, dtype=torch.float32)
    ids = torch.empty(tokens, routing.top_k, dtype=torch.int64)
    weights = torch.empty(tokens, routing.top_k, dtype=torch.float32)
    args = (
        *(of_dtype(x), x.data_ptr(), of_dtype(weight), weight.data_ptr(), logits.data_ptr()),
        *(tokens, experts, hidden),
    )
    threads = threads_for(logits.numel() * hidden, SMALL)
    if threads == 1 or tokens < threads * FEWEST_SHARED:
        _logits(threads, *args)
    else:
        _logits_of_tokens(threads, *args)
    bias = None if correction_bias is None else correction_bias.float().contiguous()
    _choose_all(
        threads_for(tokens, TOKENS),
        *(logits.data_ptr(), 0 if bias is None else bias.data_ptr(), tokens, experts),
        *(routing.scores == "softmax", routing.normed, routing.eps, routing.scale),
        *(ids.data_ptr(), weights.data_ptr(), routing.top_k),
    )
    return ids, weights


@inner
@no_type_check
def _dot(row, x, hidden):  # pragma: no cover  (compiled, as all below)
    """The product of a row with a token."""
    total, more = splat(np.float32(0)), splat(np.float32(0))
    for i in range(0, hidden, 2 * LANES):
        count, j = hidden - i, i + LANES
        total = fma(load_up_to(x, i, count), load_up_to(row, i, count), total)
        more = fma(load_up_to(x, j, count - LANES), load_up_to(row, j, count - LANES), more)
    return sum_of_lanes(add(total, more))


@inline
@no_type_check
def _add_to_four(numbers, x, i, of_token, count, a, b, c, d):  # pragma: no cover
    a = fma(load_up_to(x, i, count), numbers, a)
    b = fma(load_up_to(x, of_token + i, count), numbers, b)
    c = fma(load_up_to(x, 2 * of_token + i, count), numbers, c)
    return a, b, c, fma(load_up_to(x, 3 * of_token + i, count), numbers, d)


@inner
@no_type_check
def _dots(row, x, of_token, hidden, result, at, of_result):  # pragma: no cover
    """The products of a row with four tokens, each as `_dot` adds it, to `result` from `at` on."""
    zero, whole = splat(np.float32(0)), hidden - hidden % (2 * LANES)
    a, b, c, d = zero, zero, zero, zero
    more_a, more_b, more_c, more_d = zero, zero, zero, zero
    for i in range(0, whole, 2 * LANES):
        numbers, others = load(row, i), load(row, i + LANES)
        a, b, c, d = _add_to_four(numbers, x, i, of_token, LANES, a, b, c, d)
        more_a, more_b, more_c, more_d = _add_to_four(
            others, x, i + LANES, of_token, LANES, more_a, more_b, more_c, more_d
        )
    if whole < hidden:
        count, j = hidden - whole, whole + LANES
        numbers, others = load_up_to(row, whole, count), load_up_to(row, j, count - LANES)
        a, b, c, d = _add_to_four(numbers, x, whole, of_token, count, a, b, c, d)
        more_a, more_b, more_c, more_d = _add_to_four(
            others, x, j, of_token, count - LANES, more_a, more_b, more_c, more_d
        )
    result[at] = sum_of_lanes(add(a, more_a))
    result[at + of_result] = sum_of_lanes(add(b, more_b))
    result[at + 2 * of_result] = sum_of_lanes(add(c, more_c))
    result[at + 3 * of_result] = sum_of_lanes(add(d, more_d))


@inner
@no_type_check
def _logits_share(
    worker, workers, x_like, x, like, weight, logits, tokens, experts, hidden
):  # fmt: skip  # pragma: no cover
    result = singles(logits, tokens * experts)
    first, last = jobs_of(worker, workers, experts)
    for e in range(first, last):
        row = pointer(elements(weight + like.itemsize * e * hidden, hidden, like))
        for t in range(0, tokens, 4):
            of_token = pointer(elements(x + x_like.itemsize * t * hidden, hidden, x_like))
            if t + 4 <= tokens:
                _dots(row, of_token, hidden, hidden, result, t * experts + e, experts)
                continue
            for i in range(t, tokens):
                token = pointer(elements(x + x_like.itemsize * i * hidden, hidden, x_like))
                result[i * experts + e] = _dot(row, token, hidden)


@parallel_kernel
@no_type_check
def _logits(
    threads, x_like, x, like, weight, logits, tokens, experts, hidden
):  # fmt: skip  # pragma: no cover
    given = x_like, x, like, weight, logits, tokens, experts, hidden
    share(_logits_share, threads, given)


@inner
@no_type_check
def _widen(x, count, wide):  # pragma: no cover
    for i in range(0, count, LANES):
        store_up_to(load_up_to(x, i, count - i), wide, i, count - i)


@inner
@no_type_check
def _logits_of_some(
    worker, workers, x_like, x, like, weight, logits, tokens, experts, hidden
):  # fmt: skip  # pragma: no cover
    """A worker's tokens four at a time, which are widened once for many experts."""
    most = max(1, NEAR // hidden)
    begin, end = jobs_of(worker, workers, tokens)
    wide, result = aligned(4 * hidden), singles(logits, tokens * experts)
    room = pointer(wide)
    for first in range(0, experts, most):
        last = min(experts, first + most)
        for t in range(begin, end, 4):
            some = min(4, end - t)
            given = elements(x + x_like.itemsize * t * hidden, some * hidden, x_like)
            _widen(pointer(given), some * hidden, room)
            for e in range(first, last):
                row = pointer(elements(weight + like.itemsize * e * hidden, hidden, like))
                if some == 4:
                    _dots(row, room, hidden, hidden, result, t * experts + e, experts)
                    continue
                for i in range(some):
                    token = pointer(wide[i * hidden :])
                    result[(t + i) * experts + e] = _dot(row, token, hidden)


@parallel_kernel
@no_type_check
def _logits_of_tokens(
    threads, x_like, x, like, weight, logits, tokens, experts, hidden
):  # fmt: skip  # pragma: no cover
    given = x_like, x, like, weight, logits, tokens, experts, hidden
    share(_logits_of_some, threads, given)


@inner_exact
@no_type_check
def _score(logits, experts, is_softmax):  # pragma: no cover
    """Turns a token's logits into scores, summed in the same order wherever it is compiled."""
    numbers = pointer(logits)
    if not is_softmax:
        for e in range(0, experts, LANES):
            count = experts - e
            x = load_up_to(numbers, e, count)
            store_up_to(times_sigmoid(splat(np.float32(1)), x), numbers, e, count)
        return
    most = logits[0]
    for e in range(experts):
        if logits[e] > most:
            most = logits[e]
    largest, total = splat(most), splat(np.float32(0))
    for e in range(0, experts, LANES):
        count = experts - e
        store_up_to(exp(sub(load_up_to(numbers, e, count), largest)), numbers, e, count)
        total = add(total, load_up_to(numbers, e, count))
    whole = splat(sum_of_lanes(total))
    for e in range(0, experts, LANES):
        count = experts - e
        store_up_to(div(load_up_to(numbers, e, count), whole), numbers, e, count)


@inner_exact
@no_type_check
def _choose(
    worker, workers, logits, bias, tokens, experts, is_softmax, normed, eps, scale, ids, weights,
    top_k
):  # fmt: skip  # pragma: no cover
    merit = np.empty(experts, np.float32)
    first, last = jobs_of(worker, workers, tokens)
    for t in range(first, last):
        scores = singles(logits + 4 * t * experts, experts)
        _score(scores, experts, is_softmax)
        copy_bytes(scores.ctypes.data, merit.ctypes.data, 4 * experts)
        if bias != 0:
            merit += singles(bias, experts)
        chosen, weight = (
            integers(ids + 8 * t * top_k, top_k),
            singles(weights + 4 * t * top_k, top_k),
        )
        total = np.float32(0)
        for j in range(top_k):
            chosen[j] = np.argmax(merit)
            merit[chosen[j]] = -np.inf
            weight[j] = scores[chosen[j]]
            total += weight[j]
        factor = np.float32(scale)
        if normed:
            factor /= total + np.float32(eps)
        for j in range(top_k):
            weight[j] *= factor


@parallel_kernel
@no_type_check
def _choose_all(
    threads, logits, bias, tokens, experts, is_softmax, normed, eps, scale, ids, weights, top_k
):  # fmt: skip  # pragma: no cover
    given = (
        logits, bias, tokens, experts, is_softmax, normed, eps, scale, ids, weights, top_k
    )  # fmt: skip
    share(_choose, threads, given)
