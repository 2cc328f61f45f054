"""SequencePages: all page tables of a sequence change together or not at all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.slabs import OutOfPages
from tests.cache.stand_ins import Group, pool_of


def ids(pages: SequencePages, sequence: str) -> list[list[int]]:
    return [list(table.physical_ids) for table in pages.tables(sequence)]


def test_bug_01_an_admission_that_fails_leaves_no_partial_table() -> None:
    # Tokens alone would fit, and so would the state: not both.
    pages = SequencePages(pool_of([Group(16, 1), Group(64)], 2))
    pages.admit("a", 4)
    assert not pages.can_admit(1)
    with pytest.raises(OutOfPages):
        pages.admit("b", 1)
    assert len(pages) == 1 and "b" not in pages
    pages.free("a")
    assert pages.can_admit(4)
    pages.admit("b", 4)


@given(
    page_size=st.sampled_from([1, 2, 16]),
    start=st.integers(0, 40),
    more=st.lists(st.integers(0, 40)),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_bug_04_extending_by_k_takes_just_the_pages_that_k_tokens_begin(
    page_size: int, start: int, more: list[int]
) -> None:
    pool = pool_of([Group(16 * page_size, page_size), Group(48)], 400)
    pages = SequencePages(pool)
    pages.admit("a", start)
    for k in more[:6]:
        start += k
        pages.extend("a", start)
        tokens, states = pages.tables("a")
        assert len(tokens) == -(-start // page_size)
        assert len(states) == (start > 0)
        assert pages.capacity("a") == (len(tokens) * page_size if start else 0)


@pytest.mark.parametrize("start", [1, 15, 16, 17, 31, 32])
@pytest.mark.parametrize("k", [1, 2, 16, 17, 33])
def test_bug_04_the_check_before_extending_asks_for_no_page_too_many(start: int, k: int) -> None:
    needed = -(-(start + k) // 16)
    for num_pages in range(-(-start // 16), needed + 2):
        pages = SequencePages(pool_of([Group(256, 16)], num_pages))
        pages.admit("a", start)
        before = ids(pages, "a")
        assert pages.can_extend("a", start + k) == (num_pages >= needed)
        if num_pages < needed:
            with pytest.raises(OutOfPages):
                pages.extend("a", start + k)
            assert ids(pages, "a") == before and pages.capacity("a") == 16 * len(before[0])
        else:
            pages.extend("a", start + k)
            assert len(pages.tables("a")[0]) == needed


def test_bug_14_admitting_twice_changes_nothing() -> None:
    pages = SequencePages(pool_of([Group(16, 1), Group(64)], 4))
    pages.admit("a", 3)
    pages.commit("a", 2)
    before = ids(pages, "a")
    with pytest.raises(ValueError, match="'a' is in the cache already"):
        pages.admit("a", 1)
    assert ids(pages, "a") == before
    assert (pages.capacity("a"), pages.num_committed("a")) == (3, 2)


def test_a_commit_stays_within_what_was_admitted_and_never_goes_back() -> None:
    pages = SequencePages(pool_of([Group(16, 1)], 4))
    pages.admit("a", 3)
    pages.commit("a", 2)
    for wrong in (1, 4):
        with pytest.raises(AssertionError):
            pages.commit("a", wrong)
    assert pages.num_committed("a") == 2


def test_a_sequence_is_freed_once() -> None:
    pages = SequencePages(pool_of([Group(16, 1)], 4))
    pages.admit("a", 3)
    pages.free("a")
    with pytest.raises(KeyError):
        pages.free("a")
    assert pages.can_admit(4)
