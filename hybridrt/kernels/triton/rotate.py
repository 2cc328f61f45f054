"""rotate in Triton: some heads of a token by each program."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.kernels.triton.launch import block_of, jit

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
    if out.numel() == 0:
        return out
    tokens, heads, size = x.shape
    half = table.shape[2]
    pairs, still = block_of(half, 1), size - 2 * half
    group = min(block_of(heads, 1), max(1, _MOST_ELEMENTS // (2 * pairs)))
    _rotate[(tokens, triton.cdiv(heads, group))](
        x,
        table,
        positions,
        out,
        *x.stride(),
        *table.stride(),
        positions.stride(0),
        heads,
        size,
        half,
        HEADS=group,
        PAIRS=pairs,
        STILL=block_of(still, 1) if still else 0,
        INTERLEAVED=interleaved,
        BACK=back,
    )
    return out


@jit
@no_type_check
def _rotate(
    x,  # [tokens, heads, size]
    table,  # [positions, 2, half]
    positions,  # [tokens]
    out,  # as x, without gaps
    x_token,
    x_head,
    x_element,
    table_position,
    table_part,
    table_element,
    position_stride,
    heads,
    size,
    half,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    STILL: tl.constexpr,  # a power of two that holds what isn't turned; or 0
    INTERLEAVED: tl.constexpr,
    BACK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    pair = tl.arange(0, PAIRS).to(tl.int64)[None, :]
    given = x + token * x_token + head * x_head
    result = out + (token * heads + head) * size
    table += tl.load(positions + token * position_stride) * table_position + pair * table_element
    cos = tl.load(table, mask=pair < half, other=0.0)
    sin = tl.load(table + table_part, mask=pair < half, other=0.0)
    if BACK:
        sin = -sin
    if INTERLEAVED:
        # Read as it lies, and then taken apart: each for itself would be half a word at a time.
        element = tl.arange(0, 2 * PAIRS).to(tl.int64)[None, :]
        live = (head < heads) & (element < 2 * half)
        value = tl.load(given + element * x_element, mask=live, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(value, (HEADS, PAIRS, 2)))
        turned = tl.join(first * cos - second * sin, second * cos + first * sin)
        turned = tl.reshape(turned, (HEADS, 2 * PAIRS))
        tl.store(result + element, turned.to(out.dtype.element_ty), mask=live)
    else:
        live = (head < heads) & (pair < half)
        first = tl.load(given + pair * x_element, mask=live, other=0.0).to(tl.float32)
        second = tl.load(given + (half + pair) * x_element, mask=live, other=0.0).to(tl.float32)
        turned = first * cos - second * sin
        tl.store(result + pair, turned.to(out.dtype.element_ty), mask=live)
        turned = second * cos + first * sin
        tl.store(result + half + pair, turned.to(out.dtype.element_ty), mask=live)
    if STILL > 0:
        element = 2 * half + tl.arange(0, STILL).to(tl.int64)[None, :]
        live = (head < heads) & (element < size)
        tl.store(result + element, tl.load(given + element * x_element, mask=live), mask=live)
