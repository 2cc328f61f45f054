"""delta_inputs in numba, of bfloat16: one pass over each token."""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import BFloat16, Float32
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, singles, widen
from hybridrt.kernels.cpu.fast_exp import fast_exp
from hybridrt.kernels.cpu.gated import sigmoid
from hybridrt.kernels.cpu.jit import inner_exact, inner_fast
from hybridrt.kernels.cpu.share import parallel_kernel, share_each, threads_for
from hybridrt.kernels.cpu.softplus import softplus
from hybridrt.kernels.cpu.vector_math import fma, mul, splat, sum_of_lanes
from hybridrt.kernels.cpu.vectors import LANES, load_up_to, pointer, store_up_to


def delta_inputs(
    qk: BFloat16[Tensor, "tokens two_key_dims"],
    a: BFloat16[Tensor, "tokens heads"],
    b: BFloat16[Tensor, "tokens heads"],
    A_log: Float32[Tensor, " heads"],
    dt_bias: Float32[Tensor, " heads"],
    key_heads: int,
    beta_scale: float,
) -> tuple[
    Float32[Tensor, "tokens key_heads head_k_dim"],
    Float32[Tensor, "tokens key_heads head_k_dim"],
    Float32[Tensor, "tokens heads"],
    Float32[Tensor, "tokens heads"],
]:
    """See `hybridrt.kernels.delta_inputs`."""
    qk, a, b = (part if part.stride(1) == 1 else part.contiguous() for part in (qk, a, b))
    A_log, dt_bias = A_log.float().contiguous(), dt_bias.float().contiguous()
    (tokens, heads), k_dim = a.shape, qk.shape[1] // (2 * key_heads)
    q, k = torch.empty(2, tokens, key_heads, k_dim, dtype=torch.float32)
    g, beta = torch.empty(2, tokens, heads, dtype=torch.float32)
    _all(
        threads_for(qk.numel()),
        *(qk.data_ptr(), qk.stride(0), a.data_ptr(), a.stride(0), b.data_ptr(), b.stride(0)),
        *(A_log.data_ptr(), dt_bias.data_ptr(), beta_scale),
        *(q.data_ptr(), k.data_ptr(), g.data_ptr(), beta.data_ptr()),
        *(tokens, key_heads, k_dim, heads),
    )
    return q, k, g, beta


@inner_exact
@no_type_check
def _normed(given, result, size, factor):  # pragma: no cover  (compiled, as all below)
    """A head's vector, of the length `factor`; summed in the same order wherever it is compiled."""
    values, into = pointer(halves(given, size)), pointer(singles(result, size))
    squares = splat(np.float32(0))
    for i in range(0, size, LANES):
        value = load_up_to(values, i, size - i)
        squares = fma(value, value, squares)
    length = np.sqrt(sum_of_lanes(squares) + np.float32(1e-6))
    scale = splat(np.float32(np.float32(factor) / length))
    for i in range(0, size, LANES):
        store_up_to(mul(load_up_to(values, i, size - i), scale), into, i, size - i)


@inner_fast
@no_type_check
def _token(
    t, qk, qk_stride, a, a_stride, b, b_stride, A_log, dt_bias, beta_scale, q, k, g, beta,
    key_heads, k_dim, heads
):  # fmt: skip  # pragma: no cover
    for head in range(key_heads):
        given, place = qk + 2 * (t * qk_stride + head * k_dim), 4 * (t * key_heads + head) * k_dim
        _normed(given, q + place, k_dim, 1 / np.sqrt(k_dim))
        _normed(given + 2 * key_heads * k_dim, k + place, k_dim, 1.0)
    steps, rates = halves(a + 2 * t * a_stride, heads), singles(A_log, heads)
    shares, biases = halves(b + 2 * t * b_stride, heads), singles(dt_bias, heads)
    decays, corrected = singles(g + 4 * t * heads, heads), singles(beta + 4 * t * heads, heads)
    for head in range(heads):
        decays[head] = -fast_exp(rates[head]) * softplus(widen(steps[head]) + biases[head])
        corrected[head] = np.float32(beta_scale) * sigmoid(widen(shares[head]))


@parallel_kernel
@no_type_check
def _all(
    threads, qk, qk_stride, a, a_stride, b, b_stride, A_log, dt_bias, beta_scale, q, k, g, beta,
    tokens, key_heads, k_dim, heads
):  # fmt: skip  # pragma: no cover
    given = (
        qk, qk_stride, a, a_stride, b, b_stride, A_log, dt_bias, beta_scale, q, k, g, beta,
        key_heads, k_dim, heads
    )  # fmt: skip
    share_each(_token, threads, tokens, given)
