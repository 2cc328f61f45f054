"""delta_inputs in Triton: one launch for queries and keys and, by its last programs, for gates."""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.kernels.triton.gates import sigmoid
from hybridrt.kernels.triton.launch import block_of, cdiv, jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.softplus import softplus

_ELEMENTS, _GATES = 1024, 256  # of queries or keys of a program, and of its g and beta


def delta_inputs(
    qk: Float[Tensor, "tokens two_key_dims"],
    a: Float[Tensor, "tokens heads"],
    b: Float[Tensor, "tokens heads"],
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
    tokens, heads = a.shape
    key_dim = qk.shape[1] // (2 * key_heads)
    shape = (tokens, 2, key_heads, key_dim)
    normed = torch.empty(shape, dtype=torch.float32, device=qk.device)
    g, beta = torch.empty((2, tokens, heads), dtype=torch.float32, device=qk.device)
    block_k = block_of(key_dim, 1)
    at_once = max(1, _ELEMENTS // block_k)
    of_keys = cdiv(tokens * 2 * key_heads, at_once)
    if tokens:
        _make[(of_keys + cdiv(tokens * heads, _GATES),)](
            *(qk, a, b, A_log, dt_bias),
            *(normed, g, beta),
            *(*qk.stride(), *a.stride(), *b.stride(), A_log.stride(0), dt_bias.stride(0)),
            tokens,
            of_keys,
            key_dim**-0.5,
            beta_scale,
            KEY_HEADS=key_heads,
            KEY_DIM=key_dim,
            HEADS=heads,
            ROWS=at_once,
            BLOCK_K=block_k,
            GATES=_GATES,
        )
    q, k = normed.unbind(1)
    return q, k, g, beta


@jit
@no_type_check
def unit_rows(x):
    """`x / sqrt(sum(x^2) + 1e-6)`, row by row."""
    return x * (1 / tl.sqrt(tl.sum(x * x, 1) + 1e-6))[:, None]


@kernel(do_not_specialize=["tokens", "of_keys"])
@no_type_check
def _make(
    qk,  # [tokens, 2 * KEY_HEADS * KEY_DIM]
    a,  # [tokens, HEADS]
    b,  # [tokens, HEADS]
    A_log,  # [HEADS]
    dt_bias,  # [HEADS]
    normed,  # [tokens, 2 * KEY_HEADS, KEY_DIM] without gaps
    g,  # [tokens, HEADS] without gaps
    beta,  # [tokens, HEADS] without gaps
    qk_token,
    qk_element,
    a_token,
    a_head,
    b_token,
    b_head,
    A_stride,
    bias_stride,
    tokens,
    of_keys,
    query_scale,
    beta_scale,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATES: tl.constexpr,
):
    wait_for_earlier()
    program = tl.program_id(0)
    if program >= of_keys:
        gate = (program - of_keys) * GATES + tl.arange(0, GATES)
        fits = gate < tokens * HEADS
        token, head = (gate // HEADS).to(tl.int64), (gate % HEADS).to(tl.int64)
        rate = tl.exp(tl.load(A_log + head * A_stride, mask=fits, other=0.0))
        shift = tl.load(dt_bias + head * bias_stride, mask=fits, other=0.0)
        step = tl.load(a + token * a_token + head * a_head, mask=fits, other=0.0)
        tl.store(g + gate, -rate * softplus(step.to(tl.float32) + shift), mask=fits)
        strength = tl.load(b + token * b_token + head * b_head, mask=fits, other=0.0)
        tl.store(beta + gate, beta_scale * sigmoid(strength.to(tl.float32)), mask=fits)
        return
    part = program * ROWS + tl.arange(0, ROWS)
    token, head = (part // (2 * KEY_HEADS)).to(tl.int64), part % (2 * KEY_HEADS)
    element = tl.arange(0, BLOCK_K)
    fits = (part < tokens * (2 * KEY_HEADS))[:, None] & (element < KEY_DIM)[None, :]
    place = (head * KEY_DIM).to(tl.int64)[:, None] + element[None, :]
    at = qk + (token * qk_token)[:, None] + place * qk_element
    row = unit_rows(tl.load(at, mask=fits, other=0.0).to(tl.float32))
    row *= tl.where(head < KEY_HEADS, query_scale, 1.0)[:, None]
    at = normed + (token * (2 * KEY_HEADS * KEY_DIM))[:, None] + place
    tl.store(at, row, mask=fits)
