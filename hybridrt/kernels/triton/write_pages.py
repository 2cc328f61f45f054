"""write_pages in Triton: whole words are moved, whatever their dtype."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.kernels.triton.launch import block_of, jit

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_ELEMENTS = 1024  # that a program moves: 8 for each of its 128 threads


def write_pages(
    values: Shaped[Tensor, "  tokens *dims"],
    cache: Shaped[Tensor, "  blocks block_size *dims"],
    slots: Int64[Tensor, " tokens"],
) -> None:
    """See `hybridrt.kernels.write_pages`."""
    # Rounded by torch, so that values beyond an 8-bit float's range become what they do there.
    values = values.to(cache.dtype)
    word = _WORDS[cache.itemsize]
    values, cache = _two_dims(values.view(word), 1), _two_dims(cache.view(word), 2)
    tokens, outer, inner = values.shape
    if values.numel() == 0:
        return
    block = min(block_of(outer * inner), _MOST_ELEMENTS)
    _write[(tokens, triton.cdiv(outer * inner, block))](
        values,
        cache,
        slots,
        *values.stride(),
        *cache.stride(),
        slots.stride(0),
        cache.shape[1],
        outer * inner,
        INNER=inner,
        BLOCK=block,
    )


def _two_dims(tensor: Shaped[Tensor, "..."], lead: int) -> Shaped[Tensor, "..."]:
    """The same elements with two axes behind the first `lead`."""
    while tensor.dim() < lead + 2:
        tensor = tensor.unsqueeze(lead)
    if tensor.dim() == lead + 2:
        return tensor
    return tensor.view(*tensor.shape[: lead + 1], -1)  # never a copy: caches are written


@jit
@no_type_check
def _write(
    values,  # [tokens, outer, inner]
    cache,  # [blocks, block_size, outer, inner]
    slots,  # [tokens]
    value_token,
    value_outer,
    value_inner,
    cache_block,
    cache_token,
    cache_outer,
    cache_inner,
    slot_stride,
    block_size,
    count,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token * slot_stride)
    if slot < 0:
        return
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    outer, inner = (element // INNER).to(tl.int64), (element % INNER).to(tl.int64)
    source = token * value_token + outer * value_outer + inner * value_inner
    target = slot // block_size * cache_block + slot % block_size * cache_token
    target += outer * cache_outer + inner * cache_inner
    live = element < count
    tl.store(cache + target, tl.load(values + source, mask=live), mask=live)
