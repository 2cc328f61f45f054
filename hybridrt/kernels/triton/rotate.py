"""rotate and rotate_normed in Triton: some heads of a token by each program."""

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.kernels.triton.launch import (
    block_of,
    cdiv,
    jit,
    kernel,
    row_strides,
    wait_for_earlier,
)

_MOST_ELEMENTS = 2048  # that a program turns: 16 for each of its 128 threads


def rotate(
    x: Float[Tensor, "tokens heads head_dim"],
    table: Float32[Tensor, "positions 2 half"],
    positions: Int64[Tensor, " tokens"],
    interleaved: bool,
    back: bool,
) -> Float[Tensor, "tokens heads head_dim"]:
    """See `hybridrt.kernels.rotate`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch((x,), (), (out,), table, positions, interleaved, back)
    return out


def rotate_normed(
    q: Float[Tensor, "tokens heads head_dim"],
    k: Float[Tensor, "tokens kv_heads head_dim"],
    q_weight: Float[Tensor, " head_dim"],
    k_weight: Float[Tensor, " head_dim"],
    eps: float,
    offset: float,
    table: Float32[Tensor, "positions 2 half"],
    positions: Int64[Tensor, " tokens"],
    interleaved: bool,
) -> tuple[Float[Tensor, "tokens heads head_dim"], Float[Tensor, "tokens kv_heads head_dim"]]:
    """See `hybridrt.kernels.rotate`. Rounded once."""
    weights = q_weight, k_weight
    q_out, k_out = (
        torch.empty(x.shape, dtype=weight.dtype, device=x.device)
        for x, weight in zip((q, k), weights, strict=True)
    )
    _launch((q, k), weights, (q_out, k_out), table, positions, interleaved, False, eps, offset)
    return q_out, k_out


def _launch(
    given: Sequence[Float[Tensor, "tokens ..."]],
    weights: Sequence[Float[Tensor, " head_dim"]],
    outs: Sequence[Float[Tensor, "tokens ..."]],
    table: Float32[Tensor, "positions 2 half"],
    positions: Int64[Tensor, " tokens"],
    interleaved: bool,
    back: bool,
    eps: float = 0.0,
    offset: float = 0.0,
) -> None:
    """Turns each of one or two tensors' heads, normed first where there are weights."""
    if all(out.numel() == 0 for out in outs):
        return
    x, more = (*given, None)[:2]
    out, more_out = (*outs, None)[:2]
    weight, more_weight = (*weights, None, None)[:2]
    assert x is not None
    (tokens, heads, size), half = x.shape, table.shape[2]
    more_heads = 0 if more is None else more.shape[1]
    pairs, still = block_of(half, 1), size - 2 * half
    most = max(1, _MOST_ELEMENTS // block_of(size, 1))
    group = min(block_of(max(heads, more_heads), 1), most)
    parts = cdiv(heads, group)
    _rotate[(tokens, parts + cdiv(more_heads, group))](
        x,
        out,
        weight,
        more,
        more_out,
        more_weight,
        table,
        positions,
        *x.stride(),
        *row_strides(weight, 1),
        *row_strides(more, 3),
        *row_strides(more_weight, 1),
        *table.stride(),
        positions.stride(0),
        heads,
        more_heads,
        parts,
        size,
        half,
        eps,
        offset,
        HEADS=group,
        PAIRS=pairs,
        STILL=block_of(still, 1) if still else 0,
        INTERLEAVED=interleaved,
        BACK=back,
    )


@kernel
@no_type_check
def _rotate(
    x,  # [tokens, heads, size]
    out,  # as x, without gaps
    weight,  # [size]; None: it isn't normed
    more,  # as x, with other heads; None: there is one tensor
    more_out,
    more_weight,
    table,  # [positions, 2, half]
    positions,  # [tokens]
    x_token,
    x_head,
    x_element,
    weight_stride,
    more_token,
    more_head,
    more_element,
    more_weight_stride,
    table_position,
    table_part,
    table_element,
    position_stride,
    heads,
    more_heads,
    parts,  # of x's heads: programs behind them have more's
    size,
    half,
    eps,
    offset,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    STILL: tl.constexpr,  # a power of two that holds what isn't turned; or 0
    INTERLEAVED: tl.constexpr,
    BACK: tl.constexpr,
):
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    pair = tl.arange(0, PAIRS).to(tl.int64)[None, :]
    table += tl.load(positions + token * position_stride) * table_position + pair * table_element
    cos = tl.load(table, mask=pair < half, other=0.0)
    sin = tl.load(table + table_part, mask=pair < half, other=0.0)
    if BACK:
        sin = -sin
    if part < parts:
        own = (x + token * x_token, out + token * heads * size, weight)
        sizes, strides = (heads, size, half), (x_head, x_element, weight_stride)
        turn(own, part, cos, sin, strides, sizes, eps, offset, HEADS, PAIRS, STILL, INTERLEAVED)
    elif more is not None:
        own = (more + token * more_token, more_out + token * more_heads * size, more_weight)
        sizes, strides = (more_heads, size, half), (more_head, more_element, more_weight_stride)
        part -= parts
        turn(own, part, cos, sin, strides, sizes, eps, offset, HEADS, PAIRS, STILL, INTERLEAVED)


@jit
@no_type_check
def turn(
    own,  # a token's x and out, and their weight or None
    part,  # which of the heads
    cos,  # [1, PAIRS]
    sin,
    strides,  # of heads, elements, and of the weight
    sizes,
    eps,
    offset,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    STILL: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Turns some heads of a token, normed first where there is a weight."""
    x, out, weight = own
    head_stride, stride, weight_stride = strides
    heads, size, half = sizes
    head = (part * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    x, out = x + head * head_stride, out + head * size
    live = head < heads
    pair = tl.arange(0, PAIRS).to(tl.int64)[None, :]
    first_at, second_at = pair, half + pair
    if INTERLEAVED:
        # Read as it lies, and then taken apart: each for itself would be half a word at a time.
        both_at = tl.arange(0, 2 * PAIRS).to(tl.int64)[None, :]
        both_live = live & (both_at < 2 * half)
        both = tl.load(x + both_at * stride, mask=both_live, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(both, (HEADS, PAIRS, 2)))
        first_at, second_at = 2 * pair, 2 * pair + 1
    else:
        pair_live = live & (pair < half)
        first = tl.load(x + first_at * stride, mask=pair_live, other=0.0).to(tl.float32)
        second = tl.load(x + second_at * stride, mask=pair_live, other=0.0).to(tl.float32)
    if STILL > 0:
        still_at = 2 * half + tl.arange(0, STILL).to(tl.int64)[None, :]
        still_live = live & (still_at < size)
        still = tl.load(x + still_at * stride, mask=still_live, other=0.0).to(tl.float32)
    if weight is not None:
        squares = tl.sum(first * first + second * second, 1)
        if STILL > 0:
            squares += tl.sum(still * still, 1)
            still_weight = tl.load(
                weight + still_at * weight_stride, mask=still_at < size, other=0.0
            )
        scale = (1 / tl.sqrt(squares / size + eps))[:, None]
        if STILL > 0:
            still *= scale * (still_weight.to(tl.float32) + offset)
        factor = tl.load(weight + first_at * weight_stride, mask=pair < half, other=0.0)
        first *= scale * (factor.to(tl.float32) + offset)
        factor = tl.load(weight + second_at * weight_stride, mask=pair < half, other=0.0)
        second *= scale * (factor.to(tl.float32) + offset)
    turned = (first * cos - second * sin).to(out.dtype.element_ty)
    turned_second = (second * cos + first * sin).to(out.dtype.element_ty)
    if INTERLEAVED:
        both = tl.reshape(tl.join(turned, turned_second), (HEADS, 2 * PAIRS))
        tl.store(out + both_at, both, mask=both_live)
    else:
        tl.store(out + first_at, turned, mask=pair_live)
        tl.store(out + second_at, turned_second, mask=pair_live)
    if STILL > 0:
        tl.store(out + still_at, still.to(out.dtype.element_ty), mask=still_live)
