"""kda_inputs in Triton: one launch, a program has all that some heads of tokens need."""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.kernels.triton.delta_inputs import unit_rows
from hybridrt.kernels.triton.gates import sigmoid
from hybridrt.kernels.triton.launch import block_of, cdiv, kernel, wait_for_earlier
from hybridrt.kernels.triton.softplus import softplus

_ELEMENTS = 512  # of a program's queries, as many of its keys and of what makes its decays


def kda_inputs(
    q: Float[Tensor, "tokens inner"],
    k: Float[Tensor, "tokens inner"],
    f: Float[Tensor, "tokens inner"],
    b: Float[Tensor, "tokens heads"],
    A_log: Float32[Tensor, " heads"],
    dt_bias: Float32[Tensor, " inner"],
    decay_bound: float | None,
) -> tuple[
    Float32[Tensor, "tokens heads head_dim"],
    Float32[Tensor, "tokens heads head_dim"],
    Float32[Tensor, "tokens heads head_dim"],
    Float32[Tensor, "tokens heads"],
]:
    """See `hybridrt.kernels.kda_inputs`."""
    tokens, heads = b.shape
    dim = q.shape[1] // heads
    shape, options = (tokens, heads, dim), {"dtype": torch.float32, "device": q.device}
    queries, keys, g = torch.empty((3, *shape), **options)
    beta = torch.empty((tokens, heads), **options)
    block = block_of(dim, 1)
    at_once = max(1, _ELEMENTS // block)
    if tokens:
        _make[(cdiv(tokens * heads, at_once),)](
            *(q, k, f, b, A_log, dt_bias),
            *(queries, keys, g, beta),
            *(*q.stride(), *k.stride(), *f.stride(), *b.stride()),
            *(A_log.stride(0), dt_bias.stride(0)),
            tokens,
            dim**-0.5,
            decay_bound,
            HEADS=heads,
            DIM=dim,
            ROWS=at_once,
            BLOCK=block,
        )
    return queries, keys, g, beta


@kernel(do_not_specialize=["tokens"])
@no_type_check
def _make(
    q,  # [tokens, HEADS * DIM]
    k,  # [tokens, HEADS * DIM]
    f,  # [tokens, HEADS * DIM]
    b,  # [tokens, HEADS]
    A_log,  # [HEADS]
    dt_bias,  # [HEADS * DIM]
    queries,  # [tokens, HEADS, DIM] without gaps
    keys,  # [tokens, HEADS, DIM] without gaps
    g,  # [tokens, HEADS, DIM] without gaps
    beta,  # [tokens, HEADS] without gaps
    q_token,
    q_element,
    k_token,
    k_element,
    f_token,
    f_element,
    b_token,
    b_head,
    A_stride,
    bias_stride,
    tokens,
    query_scale,
    decay_bound,  # None: there is none
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, head = (row // HEADS).to(tl.int64), (row % HEADS).to(tl.int64)
    element, fits_row = tl.arange(0, BLOCK), row < tokens * HEADS
    fits = fits_row[:, None] & (element < DIM)[None, :]
    place = (head * DIM)[:, None] + element[None, :]
    out = (row.to(tl.int64) * DIM)[:, None] + element[None, :]

    query = tl.load(q + (token * q_token)[:, None] + place * q_element, mask=fits, other=0.0)
    tl.store(queries + out, unit_rows(query.to(tl.float32)) * query_scale, mask=fits)
    key = tl.load(k + (token * k_token)[:, None] + place * k_element, mask=fits, other=0.0)
    tl.store(keys + out, unit_rows(key.to(tl.float32)), mask=fits)

    step = tl.load(f + (token * f_token)[:, None] + place * f_element, mask=fits, other=0.0)
    step = step.to(tl.float32) + tl.load(dt_bias + place * bias_stride, mask=fits, other=0.0)
    rate = tl.exp(tl.load(A_log + head * A_stride, mask=fits_row, other=0.0))[:, None]
    if decay_bound is not None:
        decay = decay_bound * sigmoid(rate * step)
    else:
        decay = -rate * softplus(step)
    tl.store(g + out, decay, mask=fits)
    strength = tl.load(b + token * b_token + head * b_head, mask=fits_row, other=0.0)
    tl.store(beta + row, sigmoid(strength.to(tl.float32)), mask=fits_row)
