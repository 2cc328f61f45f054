"""Admit, extend, commit and free in any order, against a model that a child could keep.

The model has the number of tokens of each sequence, and for each page a mark that
was painted over all of its bytes. Whatever happens, every live page still shows its
mark: so bytes of live pages are disjoint, over all sequences and groups.
"""

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.pool import POISON
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.slabs import OutOfPages
from tests.cache.stand_ins import Group, pool_of
from tests.cache.test_slabs import entries

GROUPS = st.sampled_from(
    [
        Group(16, 1),
        Group(48, 3),
        Group(64, 8, 2),
        Group(192, 16, 4),
        Group(33 * 16, 66, 33),
        Group(80),
        Group(1040),
    ]
)


class PagesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lengths: dict[str, int] = {}
        self.committed: dict[str, int] = {}
        self.marks: dict[tuple[int, PhysicalId], int] = {}
        self.num_admitted = 0

    @initialize(groups=st.lists(GROUPS, min_size=1, max_size=4), num_slabs=st.integers(1, 7))
    def start(self, groups: list[Group], num_slabs: int) -> None:
        self.pool = pool_of(groups, num_slabs)
        self.pages = SequencePages(self.pool)
        self.plans = self.pool.plan.groups
        self.empty_size = entries(self.pool.allocator)

    @rule(num_tokens=st.integers(0, 40))
    def admit(self, num_tokens: int) -> None:
        name = f"sequence {self.num_admitted}"
        self.num_admitted += 1
        can = self.pages.can_admit(num_tokens)
        assert can == self.fits([plan.pages_for(num_tokens) for plan in self.plans])
        if can:
            self.pages.admit(name, num_tokens)
            self.lengths[name], self.committed[name] = num_tokens, 0
            self.mark(name)
        else:
            self.fails_without_change(lambda: self.pages.admit(name, num_tokens), OutOfPages)

    @precondition(lambda self: self.lengths)
    @rule(data=st.data(), k=st.integers(0, 40))
    def extend(self, data: st.DataObject, k: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.lengths)))
        now, then = self.lengths[name], self.lengths[name] + k
        can = self.pages.can_extend(name, k)
        assert can == self.fits([plan.pages_for(then) - plan.pages_for(now) for plan in self.plans])
        if can:
            self.pages.extend(name, k)
            self.lengths[name] = then
            self.mark(name)
        else:
            self.fails_without_change(lambda: self.pages.extend(name, k), OutOfPages)

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def admit_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.lengths)))
        self.fails_without_change(lambda: self.pages.admit(name, 1), ValueError)

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.lengths)))
        upto = data.draw(st.integers(self.committed[name], self.lengths[name]))
        self.pages.commit(name, upto)
        self.committed[name] = upto

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        """The end of a sequence, or its abort: to the cache they are the same."""
        name = data.draw(st.sampled_from(sorted(self.lengths)))
        pages = list(self.pages_of(name))
        self.pages.free(name)
        del self.lengths[name], self.committed[name]
        for group, page in pages:
            del self.marks[group, page]
            assert (self.bytes_of(group, page) == POISON).all()

    @invariant()
    def tables_have_the_pages_that_the_tokens_need(self) -> None:
        assert len(self.pages) == len(self.lengths)
        for name, length in self.lengths.items():
            assert self.pages.num_tokens(name) == length
            assert self.pages.num_committed(name) == self.committed[name]
            tables = self.pages.tables(name)
            assert [len(t) for t in tables] == [plan.pages_for(length) for plan in self.plans]

    @invariant()
    def kernel_ids_are_in_step_with_physical_ids(self) -> None:
        for name in self.lengths:
            for plan, table in zip(self.plans, self.pages.tables(name), strict=True):
                r = plan.blocks_per_page
                expected = [page * r + block for page in table.physical_ids for block in range(r)]
                assert table.kernel_ids.tolist() == expected

    @invariant()
    def bytes_of_live_pages_are_disjoint(self) -> None:
        ranges = []
        for group, page in self.marks:
            stride = self.plans[group].page_stride
            ranges.append((page * stride, (page + 1) * stride))
        ranges.sort()
        for (_, end), (start, _) in itertools.pairwise(ranges):
            assert end <= start
        assert not ranges or 0 <= ranges[0][0] <= ranges[-1][1] <= self.pool.plan.pool_bytes
        for (group, page), mark in self.marks.items():
            assert (self.bytes_of(group, page) == mark).all()

    @invariant()
    def nothing_leaks_and_the_free_structures_stay_bounded(self) -> None:
        if not hasattr(self, "pool"):
            return
        allocator, plan = self.pool.allocator, self.pool.plan
        assert allocator.num_free_slabs == plan.num_slabs - sum(map(len, self.live_slabs()))
        for index in range(len(self.plans)):
            num_live = sum(group == index for group, _ in self.marks)
            assert allocator.num_live_pages(index) == num_live
        # Every page is free or live, every slab free or in two places of its group.
        most_pages = max(group.pages_per_slab for group in self.plans)
        assert entries(allocator) <= self.empty_size + plan.num_slabs * (most_pages + 2)

    def teardown(self) -> None:
        for name in self.lengths:
            self.pages.free(name)
        if hasattr(self, "pool"):
            assert self.pool.allocator.num_free_slabs == self.pool.plan.num_slabs
            assert entries(self.pool.allocator) == self.empty_size

    def fits(self, counts: list[int]) -> bool:
        """What the pool should answer, from the live pages alone."""
        free_slabs = self.pool.plan.num_slabs
        for index, (plan, slabs) in enumerate(zip(self.plans, self.live_slabs(), strict=True)):
            num_live = sum(group == index for group, _ in self.marks)
            num_missing = max(0, num_live + counts[index] - len(slabs) * plan.pages_per_slab)
            free_slabs -= len(slabs) + -(-num_missing // plan.pages_per_slab)
        return free_slabs >= 0

    def live_slabs(self) -> list[set[int]]:
        """For each group the slabs in which it has a live page."""
        slabs: list[set[int]] = [set() for _ in self.plans]
        for group, page in self.marks:
            slabs[group].add(page // self.plans[group].pages_per_slab)
        return slabs

    def mark(self, name: str) -> None:
        """Paints the pages that a sequence got just now."""
        for group, page in self.pages_of(name):
            if (group, page) not in self.marks:
                mark = 1 + len(self.marks) % 250
                self.marks[group, page] = mark
                self.bytes_of(group, page).fill_(mark)

    def pages_of(self, name: str) -> Iterator[tuple[int, PhysicalId]]:
        for group, table in enumerate(self.pages.tables(name)):
            for page in table.physical_ids:
                yield group, page

    def bytes_of(self, group: int, page: PhysicalId) -> Tensor:
        stride = self.plans[group].page_stride
        return self.pool.bytes.view(-1)[page * stride : (page + 1) * stride]

    def fails_without_change(self, call: Callable[[], None], error: type[Exception]) -> None:
        before = self.snapshot()
        with pytest.raises(error):
            call()
        assert self.snapshot() == before

    def snapshot(self) -> tuple[object, ...]:
        allocator = self.pool.allocator
        tables = {name: list(self.pages_of(name)) for name in self.lengths}
        groups = [repr(vars(group)) for group in allocator._groups]
        whole = (allocator._free_slabs, allocator._references)
        return repr(whole), groups, tables, self.pool.bytes.numpy().tobytes()


TestPages = PagesMachine.TestCase
TestPages.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
