"""rotate_and_norm in Triton: some heads of a token, or what is normed of it, by each program."""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.kernels.triton.launch import block_of, cdiv, jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.rms_norm import store_normed
from hybridrt.kernels.triton.rotate import turn

_MOST_ELEMENTS = 1024  # that a program turns: 8 for each of its 128 threads


def rotate_and_norm(
    q: Float[Tensor, "tokens heads head_dim"],
    k: Float[Tensor, "tokens kv_heads head_dim"],
    latents: Float[Tensor, "tokens size"],
    weight: Float[Tensor, " size"],
    eps: float,
    offset: float,
    table: Float32[Tensor, "positions 2 half"],
    positions: Int64[Tensor, " tokens"],
    interleaved: bool,
) -> tuple[
    Float[Tensor, "tokens heads head_dim"],
    Float[Tensor, "tokens kv_heads head_dim"],
    Float[Tensor, "tokens size"],
]:
    """See `hybridrt.kernels.rotate`."""
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    normed = torch.empty(latents.shape, dtype=weight.dtype, device=q.device)
    (tokens, heads, dim), kv_heads = q.shape, k.shape[1]
    if tokens == 0:
        return q_out, k_out, normed
    size, half = latents.shape[1], table.shape[2]
    still = dim - 2 * half
    group = min(block_of(max(heads, kv_heads), 1), max(1, _MOST_ELEMENTS // block_of(dim, 1)))
    q_parts, k_parts = cdiv(heads, group), cdiv(kv_heads, group)
    _rotate_and_norm[(tokens, 1 + q_parts + k_parts)](
        q,
        q_out,
        k,
        k_out,
        latents,
        normed,
        weight,
        table,
        positions,
        *q.stride(),
        *k.stride(),
        *latents.stride(),
        weight.stride(0),
        *table.stride(),
        positions.stride(0),
        heads,
        kv_heads,
        q_parts,
        dim,
        half,
        size,
        eps,
        offset,
        HEADS=group,
        PAIRS=block_of(half, 1),
        STILL=block_of(still, 1) if still else 0,
        SIZE=block_of(size),
        INTERLEAVED=interleaved,
    )
    return q_out, k_out, normed


@kernel
@no_type_check
def _rotate_and_norm(
    q,  # [tokens, heads, dim]
    q_out,  # as q, without gaps
    k,  # [tokens, kv_heads, dim]
    k_out,  # as k, without gaps
    latents,  # [tokens, size]
    normed,  # as latents, without gaps
    weight,  # [size]
    table,  # [positions, 2, half]
    positions,  # [tokens]
    q_token,
    q_head,
    q_element,
    k_token,
    k_head,
    k_element,
    latent_token,
    latent_element,
    weight_stride,
    table_position,
    table_part,
    table_element,
    position_stride,
    heads,
    kv_heads,
    q_parts,  # of q's heads: programs behind them have k's
    dim,
    half,
    size,
    eps,
    offset,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    STILL: tl.constexpr,  # a power of two that holds what isn't turned; or 0
    SIZE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    wait_for_earlier()
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1) - 1
    if part < 0:
        own = (latents + token * latent_token, normed + token * size, weight)
        _norm(own, (latent_element, weight_stride), size, eps, offset, SIZE)
        return
    pair = tl.arange(0, PAIRS).to(tl.int64)[None, :]
    table += tl.load(positions + token * position_stride) * table_position + pair * table_element
    cos = tl.load(table, mask=pair < half, other=0.0)
    sin = tl.load(table + table_part, mask=pair < half, other=0.0)
    if part < q_parts:
        own = (q + token * q_token, q_out + token * heads * dim, None)
        sizes, strides = (heads, dim, half), (q_head, q_element, 0)
        turn(own, part, cos, sin, strides, sizes, eps, offset, HEADS, PAIRS, STILL, INTERLEAVED)
    else:
        own = (k + token * k_token, k_out + token * kv_heads * dim, None)
        sizes, strides = (kv_heads, dim, half), (k_head, k_element, 0)
        part -= q_parts
        turn(own, part, cos, sin, strides, sizes, eps, offset, HEADS, PAIRS, STILL, INTERLEAVED)


@jit
@no_type_check
def _norm(own, strides, size, eps, offset, SIZE: tl.constexpr):
    """A token's latents; `own` and strides are theirs, their result's and their weight's."""
    x, out, weight = own
    element = tl.arange(0, SIZE).to(tl.int64)
    fits = element < size
    value = tl.load(x + element * strides[0], mask=fits, other=0.0).to(tl.float32)
    store_normed(value, weight, strides[1], out, element, fits, size, eps, offset)
