"""route in numba: one call where torch needs ten, and the router's weight is read as it is."""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import DTYPES, elements, integers, of_dtype, singles
from hybridrt.kernels.cpu.jit import inner, inner_fast, kernel, parallel_kernel
from hybridrt.kernels.cpu.vector_math import add, fma, splat, sum_of_lanes
from hybridrt.kernels.cpu.vectors import LANES, load_up_to, pointer
from hybridrt.kernels.reference.route import Routing

SMALL = 500_000  # products: 20 us, not worth a second thread
SHARE = 4  # experts
TOKENS = 32  # whose experts are chosen in 20 us


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
    run = _logits_few if logits.numel() * hidden <= SMALL else _logits_many
    run(
        *(of_dtype(x), x.data_ptr(), of_dtype(weight), weight.data_ptr(), logits.data_ptr()),
        *(tokens, experts, hidden),
    )
    bias = None if correction_bias is None else correction_bias.float().contiguous()
    choose = _choose_few if tokens <= TOKENS else _choose_many
    choose(
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


@inner
@no_type_check
def _dots(row, x, of_token, hidden, result, of_result):  # pragma: no cover
    """The products of a row with four tokens, each as `_dot` adds it."""
    zeros = splat(np.float32(0))
    a, b, c, d = zeros, zeros, zeros, zeros
    more_a, more_b, more_c, more_d = zeros, zeros, zeros, zeros
    of_b, of_c, of_d = of_token, 2 * of_token, 3 * of_token
    for i in range(0, hidden, 2 * LANES):
        count, j = hidden - i, i + LANES
        numbers, others = load_up_to(row, i, count), load_up_to(row, j, count - LANES)
        a = fma(load_up_to(x, i, count), numbers, a)
        b = fma(load_up_to(x, of_b + i, count), numbers, b)
        c = fma(load_up_to(x, of_c + i, count), numbers, c)
        d = fma(load_up_to(x, of_d + i, count), numbers, d)
        more_a = fma(load_up_to(x, j, count - LANES), others, more_a)
        more_b = fma(load_up_to(x, of_b + j, count - LANES), others, more_b)
        more_c = fma(load_up_to(x, of_c + j, count - LANES), others, more_c)
        more_d = fma(load_up_to(x, of_d + j, count - LANES), others, more_d)
    result[0] = sum_of_lanes(add(a, more_a))
    result[of_result] = sum_of_lanes(add(b, more_b))
    result[2 * of_result] = sum_of_lanes(add(c, more_c))
    result[3 * of_result] = sum_of_lanes(add(d, more_d))


@inner
@no_type_check
def _logits(
    x_like, x, like, weight, logits, tokens, experts, hidden, first, last
):  # fmt: skip  # pragma: no cover
    result = singles(logits, tokens * experts)
    for e in range(first, last):
        row = pointer(elements(weight + like.itemsize * e * hidden, hidden, like))
        for t in range(0, tokens, 4):
            of_token = pointer(elements(x + x_like.itemsize * t * hidden, hidden, x_like))
            if t + 4 <= tokens:
                _dots(row, of_token, hidden, hidden, result[t * experts + e :], experts)
                continue
            for i in range(t, tokens):
                token = pointer(elements(x + x_like.itemsize * i * hidden, hidden, x_like))
                result[i * experts + e] = _dot(row, token, hidden)


@kernel
@no_type_check
def _logits_few(
    x_like, x, like, weight, logits, tokens, experts, hidden
):  # fmt: skip  # pragma: no cover
    _logits(x_like, x, like, weight, logits, tokens, experts, hidden, 0, experts)


@parallel_kernel
@no_type_check
def _logits_many(
    x_like, x, like, weight, logits, tokens, experts, hidden
):  # fmt: skip  # pragma: no cover
    for share in numba.prange((experts + SHARE - 1) // SHARE):
        _logits(
            x_like, x, like, weight, logits, tokens, experts, hidden, share * SHARE,
            min(experts, (share + 1) * SHARE)
        )  # fmt: skip


@inner_fast
@no_type_check
def _score(logits, is_softmax):  # pragma: no cover
    """Turns a token's logits into scores."""
    if not is_softmax:
        for e in range(len(logits)):
            logits[e] = np.float32(1) / (np.float32(1) + np.exp(-logits[e]))
        return
    largest, total = np.max(logits), np.float32(0)
    for e in range(len(logits)):
        logits[e] = np.exp(logits[e] - largest)
        total += logits[e]
    for e in range(len(logits)):
        logits[e] /= total


@inner_fast
@no_type_check
def _choose(
    logits, bias, tokens, experts, is_softmax, normed, eps, scale, ids, weights, top_k, first, last
):  # fmt: skip  # pragma: no cover
    merit = np.empty(experts, np.float32)
    for t in range(first, last):
        scores = singles(logits + 4 * t * experts, experts)
        _score(scores, is_softmax)
        merit[:] = scores
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


@kernel
@no_type_check
def _choose_few(
    logits, bias, tokens, experts, is_softmax, normed, eps, scale, ids, weights, top_k
):  # fmt: skip  # pragma: no cover
    _choose(
        logits, bias, tokens, experts, is_softmax, normed, eps, scale, ids, weights, top_k, 0,
        tokens
    )  # fmt: skip


@parallel_kernel
@no_type_check
def _choose_many(
    logits, bias, tokens, experts, is_softmax, normed, eps, scale, ids, weights, top_k
):  # fmt: skip  # pragma: no cover
    for share in numba.prange((tokens + TOKENS - 1) // TOKENS):
        first = share * TOKENS
        _choose(
            logits, bias, tokens, experts, is_softmax, normed, eps, scale, ids, weights, top_k,
            first, min(tokens, first + TOKENS)
        )  # fmt: skip
