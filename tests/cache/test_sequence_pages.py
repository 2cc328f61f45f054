"""SequencePages: all page tables of a sequence change together or not at all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.slabs import OutOfPages
from hybridrt.cache.spec import Window
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


@pytest.mark.parametrize(
    ("window", "held"),
    [
        # Pages of 4 that later tokens see when 0, 1, ... tokens are committed, of 16 in all.
        (Window(6), [4] * 9 + [3] * 4 + [2] * 4),
        (Window(1), [4] * 4 + [3] * 4 + [2] * 4 + [1] * 4 + [0]),
        (Window(6, chunked=True), [4] * 6 + [3] * 6 + [1] * 5),
        (Window(99), [4] * 17),
    ],
)
def test_a_page_behind_the_window_is_free_as_soon_as_no_later_token_sees_it(
    window: Window, held: list[int]
) -> None:
    pool = pool_of([Group(64, 4, window=window), Group(64, 4)], 8)
    pages = SequencePages(pool)
    pages.admit("a", 16)
    for num_tokens in range(17):
        pages.commit("a", num_tokens)
        windowed, full = pages.tables("a")
        assert (len(windowed), len(full)) == (held[num_tokens], 4)
        assert windowed.num_released == 4 - held[num_tokens]
        assert pool.allocator.num_live_pages(0) == held[num_tokens]
        assert pages.capacity("a") == 16


def test_a_long_prompt_takes_window_pages_only_as_far_as_its_first_step() -> None:
    pages = SequencePages(pool_of([Group(64, 4, window=Window(6)), Group(64, 4)], 14))
    assert not pages.can_admit(40)
    pages.admit("a", 40, stop=8)
    assert [len(table) for table in pages.tables("a")] == [2, 10]
    assert pages.capacity("a") == 8
    for stop in range(16, 41, 8):
        pages.commit("a", stop - 8)
        pages.extend("a", 40, stop)
        assert [len(table) for table in pages.tables("a")][1] == 10
        assert len(pages.tables("a")[0]) <= 4 and pages.capacity("a") == stop


def test_a_fork_shares_full_pages_and_copies_what_will_change() -> None:
    groups = [Group(64, 4), Group(64, 4, window=Window(6)), Group(32, parts=2)]
    pool = pool_of(groups, 20)
    pages = SequencePages(pool)
    pages.admit("a", 20)
    pool.bytes[:] = 1
    pages.commit("a", 14)
    pages.fork("a", "b")
    full, windowed, states = zip(pages.tables("a"), pages.tables("b"), strict=True)
    assert full[0].physical_ids[:3] == full[1].physical_ids[:3]
    assert full[0].physical_ids[3] != full[1].physical_ids[3] and len(full[1]) == 4
    assert windowed[0].num_released == windowed[1].num_released == 2
    assert windowed[0].physical_ids[0] == windowed[1].physical_ids[0]
    assert windowed[0].physical_ids[1] != windowed[1].physical_ids[1] and len(windowed[1]) == 2
    assert not {*states[0].physical_ids} & {*states[1].physical_ids} and len(states[1]) == 2
    assert (pool.blocks(pool.plan.groups[2])[states[1].kernel_ids.array] == 1).all()
    assert pages.capacity("b") == 16 and pages.num_committed("b") == 14
    pages.free("a")
    assert [pool.allocator.references(0, page) for page in full[1].physical_ids] == [1] * 4


def test_a_fork_of_what_is_not_committed_begins_with_nothing() -> None:
    pages = SequencePages(pool_of([Group(64, 4), Group(32)], 20))
    pages.admit("a", 20)
    pages.fork("a", "b")
    assert ids(pages, "b") == [[], []] and pages.capacity("b") == 0
    pages.extend("b", 3)
    assert [len(table) for table in pages.tables("b")] == [1, 1]


def test_a_sequence_from_elsewhere_gets_pages_for_what_later_tokens_see() -> None:
    groups = [Group(64, 4), Group(64, 4, window=Window(6)), Group(32, parts=2)]
    pages = SequencePages(pool_of(groups, 20))
    pages.resume("a", 14)
    assert [len(table) for table in pages.tables("a")] == [4, 2, 2]
    assert [table.num_released for table in pages.tables("a")] == [0, 2, 0]
    assert (pages.num_committed("a"), pages.capacity("a")) == (14, 16)
