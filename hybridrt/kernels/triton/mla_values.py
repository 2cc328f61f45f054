"""What the splits of a few contexts found, joined and taken to each head's values at once."""

from typing import no_type_check

import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.kernels.triton.launch import block_of, cdiv, kernel, wait_for_earlier

# Every program of a head joins its splits for itself: with more tokens, or programs of fewer
# values, they read more than a kernel between takes.
MOST_TOKENS = 2
_VALUES = 32  # of a program
_WARPS = 8
_ELEMENTS = 8192  # of the splits, read at once


def join_and_expand(
    parts: Float32[Tensor, "tokens heads splits rank"],
    logs: Float32[Tensor, "tokens heads splits"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    out: Float[Tensor, "tokens heads v_dim"],
) -> None:
    """`combine`, and then `expand_values`; what is between is in float32."""
    (tokens, heads, splits, rank), v_dim = parts.shape, w_uv.shape[1]
    if out.numel() == 0:
        return
    block_r, block_v = block_of(rank), min(_VALUES, block_of(v_dim))
    _join_and_expand[(heads, cdiv(v_dim, block_v), tokens)](
        parts,
        logs,
        w_uv,
        out,
        *w_uv.stride(),
        *out.stride(),
        heads,
        v_dim,
        SPLITS=splits,
        RANK=rank,
        GROUP=min(block_of(splits, 1), max(1, _ELEMENTS // block_r)),
        BLOCK_S=block_of(splits, 1),
        BLOCK_R=block_r,
        BLOCK_V=block_v,
        num_warps=_WARPS,
    )


@kernel
@no_type_check
def _join_and_expand(
    parts,  # [tokens, heads, SPLITS, RANK]
    logs,  # [tokens, heads, SPLITS]
    weight,  # [heads, v_dim, RANK]
    out,  # [tokens, heads, v_dim]
    weight_head,
    weight_value,
    weight_dim,
    out_token,
    out_head,
    out_value,
    heads,
    v_dim,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    GROUP: tl.constexpr,  # of splits, read at once
    BLOCK_S: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    head, token = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    value = (tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    dim = tl.arange(0, BLOCK_R).to(tl.int64)
    fits, in_rank = value < v_dim, dim < RANK
    of_value = weight + head * weight_head + value[:, None] * weight_value
    there = fits[:, None] & in_rank[None, :]
    # No kernel before this one writes weights.
    factors = tl.load(of_value + dim[None, :] * weight_dim, mask=there, other=0.0)
    wait_for_earlier()
    logs += (token * heads + head) * SPLITS
    parts += (token * heads + head) * SPLITS * RANK
    split = tl.arange(0, BLOCK_S)
    log = tl.load(logs + split, mask=split < SPLITS, other=float("-inf"))
    largest = tl.max(log, 0)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(tl.exp2(log - largest), 0)
    joined = tl.zeros([GROUP, BLOCK_R], tl.float32)
    for first in tl.static_range(0, SPLITS, GROUP):
        split = first + tl.arange(0, GROUP)
        log = tl.load(logs + split, mask=split < SPLITS, other=float("-inf"))
        # A split that had no tokens has written nothing.
        there = (log > float("-inf"))[:, None] & in_rank[None, :]
        part = tl.load(parts + split[:, None] * RANK + dim[None, :], mask=there, other=0.0)
        joined += part * tl.exp2(log - largest)[:, None]
    latent = tl.sum(joined, 0) / tl.where(total == 0, 1.0, total)
    result = tl.sum(factors.to(tl.float32) * latent[None, :], 1)
    at = out + token * out_token + head * out_head + value * out_value
    tl.store(at, result.to(out.dtype.element_ty), mask=fits)
