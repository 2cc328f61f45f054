"""Pages after write_pages in Triton against those after the reference, bit for bit."""

from collections.abc import Sequence

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
    _check_each([values], [cache], slots, device)


def _check_each(
    values: Sequence[Tensor], caches: Sequence[Tensor], slots: Tensor, device: str
) -> None:
    """Caches of one pool, or of a pool each."""
    from hybridrt.kernels.triton.write_pages import write_each, write_pages

    live, pools = slots >= 0, {id(cache._base): cache._base for cache in caches}
    expected = {key: pool.clone() for key, pool in pools.items() if pool is not None}
    actual = {key: pool.to(device) for key, pool in expected.items()}
    actual = {key: pool.clone() for key, pool in actual.items()}
    for part, cache in zip(values, caches, strict=True):
        if live.any():
            reference(part[live], _like(cache, expected[id(cache._base)]), slots[live])
    given = [part.to(device) for part in values]
    written = [_like(cache, actual[id(cache._base)]) for cache in caches]
    if len(given) == 1:
        write_pages(given[0], written[0], slots.to(device))
    else:
        write_each(given, written, slots.to(device))
    for key, pool in expected.items():
        assert torch.equal(actual[key].cpu().view(torch.uint8), pool.view(torch.uint8))


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


@pytest.mark.parametrize("wide", [4, 700])
def test_keys_and_values_side_by_side(place: tuple[str, torch.dtype], wide: int) -> None:
    """Halves of one cache, of unlike sizes, and values that are a part of a projection."""
    kv = _pool(4, 7, 2, 5 + wide, dtype=place[1])
    projected = _values(6, 2 * (5 + wide) + 3, dtype=place[1])[:, 2:-1]
    k, v = projected.split([10, 2 * wide], dim=1)
    parts = (k.unflatten(1, (2, 5)), v.unflatten(1, (2, wide)))
    _check_each(parts, (kv[..., :5], kv[..., 5:]), SLOTS, place[0])
    _check_each(parts[::-1], (kv[..., 5:], kv[..., :5]), SLOTS, place[0])


def test_caches_of_unlike_dtypes_and_axes(place: tuple[str, torch.dtype]) -> None:
    """Three or four of them, one of which holds nothing: numbers of eight bits and scales."""
    keys = _values(6, 2, 40, dtype=place[1]).to(torch.int8)
    scales = _values(6, 2, dtype=torch.float32)
    caches = (
        _pool(4, 3, 2, 40, dtype=torch.int8),
        _pool(4, 3, 2, dtype=torch.float32).transpose(1, 2).transpose(1, 2),
        _pool(5, 2, 9, dtype=place[1]),
        _pool(4, 3, 1, dtype=place[1])[..., :0],
    )
    latents = _values(6, 9, dtype=torch.float32)
    values = (keys, scales, latents, _values(6, 0, dtype=place[1]))
    slots = torch.tensor([5, -1, 0, 9, -1, 3])
    _check_each(values, caches, slots, place[0])
    _check_each(values[:3], caches[:3], slots, place[0])
    _check_each([part[:0] for part in values], caches, slots[:0], place[0])
