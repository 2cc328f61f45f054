"""The pool: one allocation, zeroed, of which every layer has its strided rows."""

import os
from pathlib import Path

import pytest
import torch

from hybridrt.cache.pool import POISON, Pool
from tests.cache.stand_ins import CPU, Group, attention, plan_of, pool_of, recurrent

_STATM = Path("/proc/self/statm")


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_pool_is_zero_at_the_start() -> None:
    pool = pool_of([Group(48, 8, 2), Group(80)], 4)
    assert pool.bytes.shape == (4, pool.plan.slab_bytes)
    assert not pool.bytes.any()


def test_a_pool_begins_where_a_line_of_memory_does() -> None:
    for slabs in (1, 3, 1000):
        assert pool_of([Group(48, 8, 2), Group(80)], slabs).bytes.data_ptr() % 64 == 0


@pytest.mark.skipif(not _STATM.exists(), reason="the system doesn't say what memory is in use")
def test_a_pool_takes_memory_where_it_is_used() -> None:
    before = _resident()
    pool = pool_of([Group(2**20)], 1024, poison=False)
    assert pool.bytes.numel() == 2**30
    assert _resident() - before < 2**26
    pool.bytes[7].fill_(1)
    assert pool.bytes[6:9].sum() == 2**20


def test_bug_10_fresh_pages_hold_zeros_whatever_type_reads_them() -> None:
    # A float32 state's bytes read as bfloat16 can be NaN, and 0 * NaN is NaN.
    plan = plan_of([attention(24), recurrent(5, 3)], 2**14)
    pool = Pool(plan, CPU)
    for layer, stand_in in zip(plan.layers, (attention(24), recurrent(5, 3)), strict=True):
        for view in stand_in.cache_spec.unpack(pool.layer_pages(layer)):
            assert not view.isnan().any() and not view.any()


def test_freed_pages_are_poisoned_and_only_they() -> None:
    pool = pool_of([Group(48, 8, 2), Group(80)], 4)
    tokens, states = pool.allocate([3, 2])
    pool.release(0, tokens[1:2])
    pool.release(1, states[:1])
    expected = torch.zeros_like(pool.bytes).view(-1)
    for group, page in ((0, tokens[1]), (1, states[0])):
        stride = pool.plan.groups[group].page_stride
        expected[page * stride : (page + 1) * stride] = POISON
    assert pool.bytes.view(-1).equal(expected)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        assert torch.full((16,), POISON, dtype=torch.uint8).view(dtype).isnan().all()


def test_a_page_with_another_holder_is_not_poisoned() -> None:
    pool = pool_of([Group(48)], 4)
    page = pool.allocate([1])[0][0]
    pool.allocator.retain(0, [page])
    pool.release(0, [page])
    assert not pool.bytes.any()
    pool.release(0, [page])
    assert pool.bytes.any()


def test_freed_pages_are_left_alone_without_poison() -> None:
    pool = pool_of([Group(48)], 4, poison=False)
    pages = pool.allocate([4])[0]
    pool.bytes.fill_(7)
    pool.release(0, pages)
    assert (pool.bytes == 7).all()
    assert pool.can_allocate([4])


def test_kernel_blocks_of_a_page_are_the_page_and_nothing_else() -> None:
    pool = pool_of([Group(33 * 48, 66, 33), Group(80), Group(48, 8, 4)], 5)
    for group in pool.plan.groups:
        pool.bytes.zero_()
        r, page = group.blocks_per_page, group.pages_per_slab * 5 - 1
        pool.blocks(group)[page * r : (page + 1) * r] = 1
        marked = pool.bytes.view(-1).nonzero()[:, 0]
        assert len(marked) == group.page_stride
        assert marked.min() == page * group.page_stride
