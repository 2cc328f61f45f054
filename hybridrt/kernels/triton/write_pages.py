"""write_pages in Triton: whole words are moved, whatever their dtype, into one cache or two."""

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.kernels.triton.launch import (
    block_of,
    cdiv,
    jit,
    kernel,
    row_strides,
    wait_for_earlier,
)

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_ELEMENTS = 1024  # that a program moves: 8 for each of its 128 threads


def write_pages(
    values: Shaped[Tensor, "  tokens *dims"],
    cache: Shaped[Tensor, "  blocks block_size *dims"],
    slots: Int64[Tensor, " tokens"],
) -> None:
    """See `hybridrt.kernels.write_pages`."""
    write_each((values,), (cache,), slots)


def write_each(
    values: Sequence[Shaped[Tensor, "  tokens ..."]],
    caches: Sequence[Shaped[Tensor, "  blocks block_size ..."]],
    slots: Int64[Tensor, " tokens"],
) -> None:
    """See `hybridrt.kernels.write_pages`. Two are written at once."""
    pairs = [_words(*pair) for pair in zip(values, caches, strict=True) if pair[0].numel()]
    for i in range(0, len(pairs), 2):
        _launch(pairs[i : i + 2], slots)


def _words(
    values: Shaped[Tensor, "  tokens *dims"], cache: Shaped[Tensor, "  blocks block_size *dims"]
) -> tuple[Tensor, Tensor]:
    """What is to be moved, `[tokens, outer, inner]`, and to where, with as many axes a token."""
    # Rounded by torch, so that values beyond an 8-bit float's range become what they do there.
    values, word = values.to(cache.dtype), _WORDS[cache.itemsize]
    return _two_dims(values.view(word), 1), _two_dims(cache.view(word), 2)


def _two_dims(tensor: Shaped[Tensor, "..."], lead: int) -> Shaped[Tensor, "..."]:
    """The same elements with two axes behind the first `lead`."""
    while tensor.dim() < lead + 2:
        tensor = tensor.unsqueeze(lead)
    if tensor.dim() == lead + 2:
        return tensor
    return tensor.view(*tensor.shape[: lead + 1], -1)  # never a copy: caches are written


def _launch(pairs: Sequence[tuple[Tensor, Tensor]], slots: Int64[Tensor, " tokens"]) -> None:
    (values, cache), (more, more_cache) = (*pairs, (None, None))[:2]
    assert values is not None and cache is not None
    count, more_count = values[0].numel(), 0 if more is None else more[0].numel()
    block = min(block_of(max(count, more_count)), _MOST_ELEMENTS)
    parts = cdiv(count, block)
    _write[(len(values), parts + cdiv(more_count, block))](
        values,
        cache,
        more,
        more_cache,
        slots,
        *values.stride(),
        *cache.stride(),
        *row_strides(more, 3),
        *row_strides(more_cache, 4),
        slots.stride(0),
        cache.shape[1],
        1 if more_cache is None else more_cache.shape[1],
        count,
        more_count,
        parts,
        INNER=values.shape[2],
        MORE_INNER=1 if more is None else more.shape[2],
        BLOCK=block,
    )


@kernel
@no_type_check
def _write(
    values,  # [tokens, outer, inner]
    cache,  # [blocks, block_size, outer, inner]
    more,  # as values, of other sizes; None: there is one cache
    more_cache,
    slots,  # [tokens]
    value_token,
    value_outer,
    value_inner,
    cache_block,
    cache_token,
    cache_outer,
    cache_inner,
    more_token,
    more_outer,
    more_inner,
    more_block,
    more_cache_token,
    more_cache_outer,
    more_cache_inner,
    slot_stride,
    block_size,
    more_block_size,
    count,
    more_count,
    parts,  # of a token's values: programs behind them have more
    INNER: tl.constexpr,
    MORE_INNER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slot = tl.load(slots + token * slot_stride)
    if slot < 0:
        return
    if part < parts:
        values += token * value_token
        cache += slot // block_size * cache_block + slot % block_size * cache_token
        strides = (value_outer, value_inner, cache_outer, cache_inner)
        _move(values, cache, part, strides, count, INNER, BLOCK)
    elif more is not None:
        more += token * more_token
        more_cache += slot // more_block_size * more_block
        more_cache += slot % more_block_size * more_cache_token
        strides = (more_outer, more_inner, more_cache_outer, more_cache_inner)
        _move(more, more_cache, part - parts, strides, more_count, MORE_INNER, BLOCK)


@jit
@no_type_check
def _move(values, cache, part, strides, count, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """A part of a token's elements; strides are those of values, and of the cache."""
    element = part * BLOCK + tl.arange(0, BLOCK)
    outer, inner = (element // INNER).to(tl.int64), (element % INNER).to(tl.int64)
    source = values + outer * strides[0] + inner * strides[1]
    target = cache + outer * strides[2] + inner * strides[3]
    live = element < count
    tl.store(target, tl.load(source, mask=live), mask=live)
