"""write_pages in numba: every token's bytes to where they belong, of any dtype."""

from typing import no_type_check

from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import integers, octets
from hybridrt.kernels.cpu.jit import kernel


def takes(cache: Shaped[Tensor, "  blocks block_size *dims"]) -> bool:
    """Whether `write_pages` can write here: a token is rows of elements one behind the other."""
    return 3 <= cache.dim() <= 4 and cache.stride(-1) == 1


def write_pages(
    values: Shaped[Tensor, "  tokens *dims"],
    cache: Shaped[Tensor, "  blocks block_size *dims"],
    slots: Int64[Tensor, " tokens"],
) -> None:
    """See `hybridrt.kernels.write_pages`."""
    values, slots = values.to(cache.dtype), slots.contiguous()
    if values.stride(-1) != 1:
        values = values.contiguous()
    itemsize, has_rows = cache.itemsize, cache.dim() == 4
    _write(
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


@kernel
@no_type_check
def _write(  # pragma: no cover  (compiled)
    values,
    cache,
    slots,
    tokens,
    given_stride,
    rows,
    given_row,
    size,
    block_size,
    block_stride,
    token_stride,
    row_stride,
):
    slot = integers(slots, tokens)
    for t in range(tokens):
        if slot[t] < 0:
            continue
        block, offset = slot[t] // block_size, slot[t] % block_size
        place = cache + block * block_stride + offset * token_stride
        for row in range(rows):
            given = octets(values + t * given_stride + row * given_row, size)
            target = octets(place + row * row_stride, size)
            for i in range(size):
                target[i] = given[i]
