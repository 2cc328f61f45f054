"""The cache map: at any time, it is what the allocator's dicts and the tables say."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from hybridrt.cache.cache_map import CACHED, FREE, SHARED, UNUSED, CacheMap, cache_map
from hybridrt.cache.place import Exports
from hybridrt.cache.prefix import make_prefix_cache
from hybridrt.cache.prefix_tree import token_bytes
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.config import EngineConfig
from tests.cache.slow_map import assert_map_is_right
from tests.cache.stand_ins import Group, pool_of
from tests.cache.test_pages_machine import PagesMachine
from tests.reuse.test_machine import ReuseMachine


class MappedPages(PagesMachine):
    @invariant()
    def the_map_is_right(self) -> None:
        if hasattr(self, "pool"):
            assert_map_is_right(self.pool, self.pages)


class MappedReuse(ReuseMachine):
    def check(self) -> None:
        assert_map_is_right(self.reader.pool, self.reader.pages)


TestMappedPages = MappedPages.TestCase
TestMappedPages.settings = settings(
    max_examples=35, stateful_step_count=25, deadline=None, derandomize=True
)
TestMappedReuse = MappedReuse.TestCase
TestMappedReuse.settings = settings(
    max_examples=35, stateful_step_count=25, deadline=None, derandomize=True
)


@pytest.fixture
def pages() -> SequencePages:
    """Pages of 4 tokens, 3 in a slab, and states, one in a slab, padded; a prefix cache."""
    pool = pool_of([Group(32, 4), Group(90)], 8)
    assert [group.pages_per_slab for group in pool.plan.groups] == [3, 1]
    prefix = make_prefix_cache(pool, EngineConfig(model="none", page_size=4))
    return SequencePages(pool, prefix)


def admit(pages: SequencePages, name: str, tokens: list[int]) -> None:
    """A prompt whose first step is still to come; it is to leave the state at its end."""
    match = pages.match(token_bytes(tokens))
    pages.admit(name, len(tokens), None, match, None, Exports([len(tokens) - 1]))


def map_of(pages: SequencePages) -> CacheMap:
    return assert_map_is_right(pages._pool, pages)


def test_an_empty_pool_is_free_slabs(pages: SequencePages) -> None:
    found = map_of(pages)
    assert set(found.slab_groups) == {-1} and all(set(p) == {UNUSED} for p in found.pages)
    assert found.sequences == () and found.owners() == {} and found.fragmentation == 0
    assert found.bytes["free_slabs"] == found.plan.pool_bytes and found.padding == 0


def test_pages_are_held_then_cached_then_shared(pages: SequencePages) -> None:
    first, second = list(range(8)), [*range(8), 9, 9]
    admit(pages, "a/0", first)
    found = map_of(pages)
    assert found.pages[0].tolist()[:4] == [0, 0, FREE, UNUSED]
    assert found.pages[1].tolist()[:4] == [UNUSED, 0, 0, UNUSED]  # its state, and the one to leave
    assert found.slab_groups.tolist() == [0, 1, 1, -1, -1, -1, -1, -1]

    pages.commit("a/0", 7, first)
    pages.commit("a/0", 8, first)
    pages.finish("a/0", first)
    assert (map_of(pages).pages[0][:3] == [CACHED, CACHED, FREE]).all()

    admit(pages, "b/0", second)
    admit(pages, "c/1", [*second, 5])
    found = map_of(pages)
    assert found.sequences == ("b/0", "c/1")
    assert found.pages[0][0] == SHARED and found.shared_bytes > 0
    assert SHARED in found.pages[1], "both start from the same states"


def test_a_map_stays_as_it_was_and_can_not_be_written(pages: SequencePages) -> None:
    admit(pages, "a/0", list(range(8)))
    found = map_of(pages)
    before = [owners.copy() for owners in (found.slab_groups, *found.pages)]
    pages.free("a/0")
    for now, then in zip((found.slab_groups, *found.pages), before, strict=True):
        assert np.array_equal(now, then)
        with pytest.raises(ValueError, match="read-only"):
            now[0] = 7


def test_one_page_says_where_it_is_and_who_has_it(pages: SequencePages) -> None:
    admit(pages, "a/0", list(range(8)))
    found = map_of(pages)
    stride = found.plan.groups[0].page_stride
    assert asdict(found.page("group-0", 1)) == {
        "group": "group-0",
        "number": 1,
        "slab": 0,
        "first_byte": stride,
        "num_bytes": stride,
        "state": "held",
        "sequence": "a/0",
    }
    assert [found.page("group-0", n).state for n in (2, 3)] == ["free", "unused"]
    with pytest.raises(ValueError, match=r"group='x' should be one of \['group-0', 'group-1'\]"):
        found.page("x", 0)
    with pytest.raises(ValueError, match=r"number=24 of 'group-0' should be from 0 to 23"):
        found.page("group-0", 24)
    number: Any
    for number in ("x", True, 1.0):
        with pytest.raises(ValueError, match=f"number={number!r} of 'group-0' should be from 0"):
            found.page("group-0", number)
    number = np.int64(2)
    assert type(found.page("group-0", number).number) is int


def test_free_bytes_in_used_slabs_are_fragmented(pages: SequencePages) -> None:
    pages.admit("a/0", 4)
    found = map_of(pages)
    free = 2 * found.plan.groups[0].page_stride
    assert found.bytes["free"] == free
    assert found.fragmentation == free / (free + 6 * found.plan.slab_bytes)


def test_a_map_prints_as_a_table_with_names_as_they_are(pages: SequencePages) -> None:
    admit(pages, "[red]<b>x/0", list(range(8)))
    found = cache_map(pages._pool, pages)
    text = str(found)
    assert "[red]<b>x/0" in text and "group-0" in text and "free slabs" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    page = found._repr_html_()
    assert "[red]&lt;b&gt;x/0" in page and "<b>" not in page and '<th scope="col"' in page
    assert repr(found) == "<CacheMap: 3 of 8 slabs taken, 1 sequences>"
