"""write_pages in numba: every token's bytes to where they belong, of any dtype."""

from typing import no_type_check

from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import integers, octets
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.share import parallel_kernel, share_each, threads_for

FEW_BYTES = 2**16
"""Up to which waking other threads would cost more than they save."""


def takes(cache: Shaped[Tensor, "  blocks block_size *dims"]) -> bool:
    """Whether `write_pages` can write here: a token is rows of elements one behind the other."""
    return 3 <= cache.dim() <= 4 and cache.stride(-1) == 1


def write_pages(
    values: Shaped[Tensor, "  tokens *dims"],
    cache: Shaped[Tensor, "  blocks block_size *dims"],
    slots: Int64[Tensor, " tokens"],
) -> None:
    """See `hybridrt.kernels.write_pages`."""
    slots = slots.long().contiguous()
    if values.dtype != cache.dtype or values.stride(-1) != 1:
        values = values.to(cache.dtype).contiguous()
    itemsize, has_rows = cache.itemsize, cache.dim() == 4
    _write_all(
        threads_for(values.numel() * itemsize, FEW_BYTES),
        values.data_ptr(),
        cache.data_ptr(),
        slots.data_ptr(),
        values.shape[0],
        values.stride(0) * itemsize,
        cache.shape[2] if has_rows else 1,
        values.stride(1) * itemsize if has_rows else 0,
        cache.shape[-1] * itemsize,
        cache.shape[1],
        cache.stride(0) * itemsize,
        cache.stride(1) * itemsize,
        cache.stride(2) * itemsize,
    )


@inner
@no_type_check
def _write(
    t, values, cache, slots, tokens, given_stride, rows, given_row, size, block_size, block_stride,
    token_stride, row_stride
):  # fmt: skip  # pragma: no cover  (compiled, as all below)
    slot = integers(slots, tokens)[t]
    if slot < 0:
        return
    block, offset = slot // block_size, slot % block_size
    place = cache + block * block_stride + offset * token_stride
    for row in range(rows):
        given = octets(values + t * given_stride + row * given_row, size)
        target = octets(place + row * row_stride, size)
        for i in range(size):  # which `copy_bytes` takes longer for, as there are few
            target[i] = given[i]


@parallel_kernel
@no_type_check
def _write_all(
    threads, values, cache, slots, tokens, given_stride, rows, given_row, size, block_size,
    block_stride, token_stride, row_stride
):  # fmt: skip  # pragma: no cover
    given = (
        values, cache, slots, tokens, given_stride, rows, given_row, size, block_size, block_stride,
        token_stride, row_stride
    )  # fmt: skip
    share_each(_write, threads, tokens, given)
