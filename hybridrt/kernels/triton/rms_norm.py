"""A residual stream's addition and the RMSNorm behind it, in one pass."""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.triton.launch import block_of, jit


def add_rms_norm(
    x: Float[Tensor, "tokens size"],
    residual: Float[Tensor, "tokens size"] | None,
    weight: Float[Tensor, " size"],
    eps: float,
    offset: float = 0.0,
) -> tuple[Float[Tensor, "tokens size"], Float[Tensor, "tokens size"]]:
    """`(offset + weight) * s / sqrt(mean(s^2) + eps)` and `s = x + residual`.

    `s` is rounded to the residual's dtype, as an addition by itself rounds it, and what is
    normed is that; the norm is computed in float32 and has the weight's dtype. Without a
    residual `s` is x. An `offset` of 1 is Gemma's norm.
    """
    tokens, size = x.shape
    total = x if residual is None else torch.empty_like(residual)
    normed = torch.empty(tokens, size, dtype=weight.dtype, device=x.device)
    if tokens:
        block = block_of(size)
        _add_norm[(tokens,)](
            x,
            residual,
            weight,
            normed,
            total,
            *x.stride(),
            *(x if residual is None else residual).stride(),
            *total.stride(),
            weight.stride(0),
            eps,
            offset,
            SIZE=size,
            ADDS=residual is not None,
            BLOCK=block,
            num_warps=4 if block <= 4096 else 8,
        )
    return normed, total


@jit
@no_type_check
def _add_norm(
    x,  # [tokens, SIZE]
    residual,  # [tokens, SIZE]
    weight,  # [SIZE]
    normed,  # [tokens, SIZE], contiguous
    total,  # [tokens, SIZE]
    x_token,
    x_dim,
    r_token,
    r_dim,
    t_token,
    t_dim,
    w_dim,
    eps,
    offset,
    SIZE: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token, dim = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    fits = dim < SIZE
    dim = dim.to(tl.int64)
    s = tl.load(x + token * x_token + dim * x_dim, mask=fits, other=0.0).to(tl.float32)
    if ADDS:
        s += tl.load(residual + token * r_token + dim * r_dim, mask=fits, other=0.0).to(tl.float32)
        kept = s.to(total.dtype.element_ty)
        tl.store(total + token * t_token + dim * t_dim, kept, mask=fits)
        s = kept.to(tl.float32)
    factor = offset + tl.load(weight + dim * w_dim, mask=fits, other=0.0).to(tl.float32)
    out = s * tl.rsqrt(tl.sum(s * s, 0) / SIZE + eps) * factor
    tl.store(normed + token * SIZE + dim, out.to(normed.dtype.element_ty), mask=fits)
