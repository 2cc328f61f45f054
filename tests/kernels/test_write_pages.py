"""Writing moves bytes: every comparison here is bit for bit, over the whole buffer."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.write_pages import write_pages
from tests.harness.properties import bounded

LAYOUTS = ("contiguous", "NHD", "HND", "row of a pool", "HND row of a pool")


def _cache(layout: str, dtype: torch.dtype, blocks: int, block_size: int) -> tuple[Tensor, Tensor]:
    """A buffer of poison, and a cache `[blocks, block_size, 2, 3]` within it."""
    before, behind = (5, 4) if "row of a pool" in layout else (0, 0)  # other layers' elements
    length = before + block_size * 6 + behind
    buffer = torch.full((blocks, length * dtype.itemsize), 0xFF, dtype=torch.uint8).view(dtype)
    rows = buffer[:, before : before + block_size * 6]
    if "HND" in layout:
        return buffer, rows.unflatten(1, (2, block_size, 3)).transpose(1, 2)
    return buffer, rows.unflatten(1, (block_size, 2, 3))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


def _check(
    layout: str, dtype: torch.dtype, block_size: int, slots: Sequence[int], device: str
) -> None:
    """Writes random values at `slots` both ways, and compares every byte of the buffers."""
    blocks = 6
    draw = torch.Generator().manual_seed(len(slots))
    values = (50 * torch.randn(len(slots), 2, 3, generator=draw)).to(dtype)
    expected, by_hand = _cache(layout, dtype, blocks, block_size)
    for value, slot in zip(values, slots, strict=True):
        if slot != -1:
            by_hand[slot // block_size, slot % block_size] = value
    buffer = _cache(layout, dtype, blocks, block_size)[0].to(device)
    offset, strides = by_hand.storage_offset(), by_hand.stride()
    cache = buffer.as_strided(by_hand.shape, strides, offset)
    write_pages(values.to(device), cache, torch.tensor(slots, device=device))
    assert torch.equal(_bytes(buffer), _bytes(expected))


@pytest.mark.parametrize("layout", LAYOUTS)
@bounded(25)
@given(data=st.data())
def test_every_live_slot_gets_its_value_and_no_other_byte_changes(
    layout: str, dtype: torch.dtype, device: str, data: st.DataObject
) -> None:
    block_size = data.draw(st.sampled_from([1, 3, 4, 16]))
    order = data.draw(st.permutations(range(6 * block_size)))
    live = order[: data.draw(st.integers(1, min(40, len(order))))]
    padded = data.draw(st.sets(st.integers(0, len(live) - 1)))
    slots = [-1 if i in padded else slot for i, slot in enumerate(live)]
    _check(layout, dtype, block_size, slots, device)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "slots",
    [[-1], [-1] * 9, [0], [-1, 0], [0, -1], [-1, 23, -1, 0, -1, -1], list(range(24))],
    ids=str,
)
def test_bug_11_padding_slots_write_nothing(
    layout: str, slots: list[int], dtype: torch.dtype, device: str
) -> None:
    _check(layout, dtype, 4, slots, device)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("eight_bits", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_numbers_of_eight_bits_are_moved_as_they_are(
    layout: str, eight_bits: torch.dtype, device: str
) -> None:
    _check(layout, eight_bits, 4, [-1, 23, -1, 0, 5, -1, 11], device)
    _check(layout, eight_bits, 4, [7, 2, 3], device)


def test_values_are_rounded_to_the_dtype_of_the_cache(device: str) -> None:
    values = torch.tensor([[1.00390625 * 3], [2.0]], device=device)
    cache = torch.zeros(2, 2, 1, dtype=torch.bfloat16, device=device)
    write_pages(values, cache, torch.tensor([3, 0], device=device))
    assert cache.flatten().tolist() == [2.0, 0.0, 0.0, values[0, 0].bfloat16().item()]


def test_a_second_write_to_a_slot_replaces_the_first(device: str) -> None:
    cache = torch.zeros(1, 4, 2, device=device)
    slots = torch.tensor([2], device=device)
    for value in (1.0, 5.0):
        write_pages(torch.full((1, 2), value, device=device), cache, slots)
    assert cache[0].tolist() == [[0, 0], [0, 0], [5, 5], [0, 0]]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_long_prompt_is_written_like_a_short_one(
    layout: str, dtype: torch.dtype, device: str
) -> None:
    """By several threads, on a CPU."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(900, 4, 24, generator=draw).to(device, dtype)
    slots = torch.randperm(1600, generator=draw)[:900].to(device)
    slots[torch.randperm(900, generator=draw)[:90].to(device)] = -1
    shape = (100, 16, 4, 24) if layout == "NHD" else (100, 4, 16, 24)
    cache = torch.full(shape, torch.nan, dtype=dtype, device=device)
    cache = cache if layout == "NHD" else cache.transpose(1, 2)
    write_pages(values, cache, slots)
    expected = torch.full((1600, 4, 24), torch.nan, dtype=dtype, device=device)
    expected[slots[slots >= 0]] = values[slots >= 0]
    assert torch.equal(_bytes(cache), _bytes(expected.view(100, 16, 4, 24)))
