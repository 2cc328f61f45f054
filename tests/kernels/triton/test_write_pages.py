"""Pages after write_pages in Triton against those after the reference, bit for bit."""

import pytest
import torch
from torch import Tensor

from hybridrt.kernels.reference.write_pages import write_pages as reference

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8)


def _pool(blocks: int, *shape: int, dtype: torch.dtype) -> Tensor:
    """Rows of a pool, with others' bytes around each."""
    size = torch.Size(shape).numel()
    pool = torch.full((blocks, 24 + size), 1, dtype=torch.uint8).repeat(1, dtype.itemsize)
    return pool.view(dtype)[:, 8 : 8 + size].unflatten(1, shape)


def _check(values: Tensor, cache: Tensor, slots: Tensor, device: str) -> None:
    from hybridrt.kernels.triton.write_pages import write_pages

    assert cache._base is not None
    live, expected = slots >= 0, cache._base.clone()
    if live.any():
        reference(values[live], _like(cache, expected), slots[live])
    actual = cache._base.to(device, copy=True)
    write_pages(values.to(device), _like(cache, actual), slots.to(device))
    assert torch.equal(actual.cpu().view(torch.uint8), expected.view(torch.uint8))


def _like(cache: Tensor, pool: Tensor) -> Tensor:
    """The same view of another pool's bytes."""
    flat = pool.view(cache.dtype)
    return flat.as_strided(cache.size(), cache.stride(), cache.storage_offset())


def _values(*shape: int, dtype: torch.dtype) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return (50 * torch.randn(shape, generator=draw)).to(dtype)


SLOTS = torch.tensor([5, -1, 0, 11, -1, 3])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", [(), (5,), (2, 3), (2, 3, 4)], ids=str)
def test_equals_the_reference(
    place: tuple[str, torch.dtype], dtype: torch.dtype, dims: tuple[int, ...]
) -> None:
    values = _values(6, *dims, dtype=place[1])
    given = values.to(torch.int8) if dtype == torch.int8 else values.to(dtype)
    _check(given, _pool(4, 3, *dims, dtype=dtype), SLOTS, place[0])


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_values_are_rounded_to_the_caches_dtype(
    place: tuple[str, torch.dtype], dtype: torch.dtype
) -> None:
    cache = _pool(4, 3, 2, 40, dtype=dtype)
    _check(_values(6, 2, 40, dtype=torch.float32), cache, SLOTS, place[0])


def test_any_strides_and_more_elements_than_a_program_moves(
    place: tuple[str, torch.dtype],
) -> None:
    """Heads before tokens, as a cache of attention has them, and values by turns with others."""
    cache = _pool(4, 7, 3, 400, dtype=place[1]).transpose(1, 2)[..., 200:]
    values = _values(6, 200, 7, 2, dtype=place[1])[..., 1].transpose(1, 2)
    _check(values, cache, SLOTS, place[0])


def test_padding_alone_writes_nothing(place: tuple[str, torch.dtype]) -> None:
    values, cache = _values(3, 5, dtype=place[1]), _pool(2, 4, 5, dtype=place[1])
    _check(values, cache, torch.full((3,), -1), place[0])
