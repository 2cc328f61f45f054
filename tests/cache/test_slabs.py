"""SlabAllocator: which slabs and pages are free."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.slabs import OutOfPages, SlabAllocator


def entries(thing: object) -> int:
    """How many items all containers inside an object hold together."""
    if isinstance(thing, dict):
        return sum(1 + entries(value) for value in thing.values())
    if hasattr(thing, "__dict__"):
        return sum(map(entries, vars(thing).values()))
    if isinstance(thing, str | bytes) or not hasattr(thing, "__iter__"):
        return 0
    return sum(1 + entries(item) for item in thing)


def test_bug_01_can_allocate_means_that_allocate_does_and_failing_changes_nothing() -> None:
    allocator = SlabAllocator(3, [4, 1])
    # The first group's page alone fits, and so do the second's two, but not both.
    allocator.allocate([5, 0])
    before = repr((vars(allocator), [vars(g) for g in allocator._groups]))
    assert allocator.can_allocate([4, 0]) and allocator.can_allocate([0, 1])
    assert not allocator.can_allocate([4, 1])
    with pytest.raises(OutOfPages, match=r"\[4, 1\] pages need 2 more slabs; 1 of 3 are free"):
        allocator.allocate([4, 1])
    assert repr((vars(allocator), [vars(g) for g in allocator._groups])) == before
    assert [len(pages) for pages in allocator.allocate([3, 1])] == [3, 1]
    assert not allocator.can_allocate([1, 0]) and not allocator.can_allocate([0, 1])
    assert allocator.can_allocate([0, 0])


def test_bug_02_free_structures_stay_bounded() -> None:
    allocator = SlabAllocator(6, [3, 1, 5])
    empty = entries(allocator)
    draw = random.Random(0)
    live: list[tuple[int, PhysicalId]] = []
    most = 0
    for _ in range(3000):
        counts = [draw.randrange(4) for _ in range(3)]
        if allocator.can_allocate(counts):
            taken = allocator.allocate(counts)
            live += [(group, page) for group, pages in enumerate(taken) for page in pages]
        else:
            draw.shuffle(live)
            for group, page in live[len(live) // 3 :]:
                assert allocator.release(group, [page])
            del live[len(live) // 3 :]
        most = max(most, entries(allocator))
    # A page is free or live, a slab free or in one place of its group: 6 slabs, 5 pages.
    assert most <= empty + 6 * 5 + 2 * 6
    for group, page in live:
        allocator.release(group, [page])
    assert entries(allocator) == empty
    assert allocator.num_free_slabs == 6


def test_bug_02_the_slab_that_was_used_last_is_reused_last() -> None:
    allocator = SlabAllocator(4, [1])
    pages = allocator.allocate([2])[0]
    for page in reversed(pages):
        allocator.release(0, [page])
    never_used, then_longest_free = [2, 3], [1, 0]
    assert allocator.allocate([4])[0] == [*never_used, *then_longest_free]


def test_pages_come_from_the_fullest_slab_so_that_others_can_empty() -> None:
    allocator = SlabAllocator(2, [4])
    pages = allocator.allocate([8])[0]
    for page in [0, 1, 2, 4]:
        allocator.release(0, [PhysicalId(page)])
    assert sorted(pages) == list(range(8))
    assert allocator.allocate([1])[0] == [4]  # slab 1 had one free page, slab 0 three
    assert allocator.release(0, [PhysicalId(3)])
    assert allocator.num_free_slabs == 1 and allocator.slabs_of(0) == [1]


def test_a_slab_comes_back_for_all_groups_when_its_last_page_is_free() -> None:
    allocator = SlabAllocator(1, [2, 1])
    first, second = allocator.allocate([2, 0])[0]
    allocator.release(0, [first])
    assert not allocator.can_allocate([0, 1])
    allocator.release(0, [second])
    assert allocator.allocate([0, 1]) == [[], [0]]


def test_a_retained_page_is_free_only_when_every_holder_has_released_it() -> None:
    allocator = SlabAllocator(1, [1])
    page = allocator.allocate([1])[0][0]
    allocator.retain(0, [page])
    assert allocator.references(0, page) == 2
    assert allocator.release(0, [page]) == []
    assert not allocator.can_allocate([1])
    assert allocator.release(0, [page]) == [page]
    assert allocator.references(0, page) == 0 and allocator.num_live_pages(0) == 0
    with pytest.raises(AssertionError):
        allocator.release(0, [page])


def test_counts_for_another_number_of_groups_are_refused() -> None:
    with pytest.raises(ValueError):
        SlabAllocator(2, [1, 2]).can_allocate([1])


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 6), st.data())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_groups_never_hold_the_same_slab(
    pages_per_slab: list[int], num_slabs: int, data: st.DataObject
) -> None:
    allocator = SlabAllocator(num_slabs, pages_per_slab)
    live: list[tuple[int, PhysicalId]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        counts = [data.draw(st.integers(0, 2 * n)) for n in pages_per_slab]
        if allocator.can_allocate(counts):
            taken = allocator.allocate(counts)
            assert [len(pages) for pages in taken] == counts
            live += [(group, page) for group, pages in enumerate(taken) for page in pages]
        elif live:
            group, page = live.pop(data.draw(st.integers(0, len(live) - 1)))
            allocator.release(group, [page])
        assert len(set(live)) == len(live)
        used = {(group, page // pages_per_slab[group]) for group, page in live}
        slabs = [slab for _, slab in used]
        assert len(set(slabs)) == len(slabs) == num_slabs - allocator.num_free_slabs
        assert all(0 <= slab < num_slabs for slab in slabs)
        for group, count in enumerate(pages_per_slab):
            held = [slab for g, slab in used if g == group]
            num_live = sum(g == group for g, _ in live)
            assert sorted(allocator.slabs_of(group)) == sorted(held)
            assert allocator.num_live_pages(group) == num_live
            assert allocator.num_free_pages(group) == len(held) * count - num_live
