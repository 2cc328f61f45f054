"""Admit, extend, commit, fork and free in any order, against a model that a child could keep.

The model has for each sequence the pages it should hold (`pages_model`), and for each
page a mark that was painted over all of its bytes. Whatever happens, every live page
still shows its mark: so bytes of live pages are disjoint, over all sequences and groups.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.slabs import OutOfPages
from hybridrt.cache.spec import Window
from tests.cache.pages_model import Held
from tests.cache.stand_ins import Group, plan_for
from tests.cache.test_slabs import entries
from tests.cache.watched_pool import WatchedPool

GROUPS = st.sampled_from(
    [
        Group(16, 1),
        Group(48, 3),
        Group(64, 8, 2),
        Group(192, 16, 4),
        Group(33 * 16, 33, 33),
        Group(80),
        Group(1040),
        Group(160, parts=3),
        Group(16, 1, window=Window(5)),
        Group(48, 4, window=Window(1)),
        Group(32, 4, 2, window=Window(7)),
        Group(64, 4, 4, window=Window(6, chunked=True)),
        Group(33 * 16, 33, 33, window=Window(40)),
        Group(48, 3, window=Window(13, chunked=True)),
    ]
)
NUM_TOKENS = st.integers(0, 50)
STOP = st.none() | st.integers(0, 50)


class PagesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, Held] = {}
        self.marks: dict[tuple[int, PhysicalId], int] = {}
        self.num_names = 0

    @initialize(
        groups=st.lists(GROUPS, min_size=1, max_size=5),
        num_slabs=st.sampled_from([1, 3, 6, 20, 60]),
    )
    def start(self, groups: list[Group], num_slabs: int) -> None:
        self.pool = WatchedPool(plan_for(groups, num_slabs))
        self.pages = SequencePages(self.pool)
        self.groups = self.pool.plan.groups
        self.empty_size = entries(self.pool.allocator)

    @rule(num_tokens=NUM_TOKENS, stop=STOP)
    def admit(self, num_tokens: int, stop: int | None) -> None:
        stop = None if stop is None else min(stop, num_tokens)
        name, held = self.new_name(), Held.nothing(self.groups)
        can = self.pages.can_admit(num_tokens, stop)
        assert can == self.fits(held.missing(num_tokens, stop))
        if not can:
            self.fails_without_change(lambda: self.pages.admit(name, num_tokens, stop), OutOfPages)
            return
        self.pages.admit(name, num_tokens, stop)
        held.extend(num_tokens, stop)
        self.live[name] = held
        self.mark_fresh(name)

    @rule(num_tokens=NUM_TOKENS)
    def resume(self, num_tokens: int) -> None:
        """A sequence that was computed elsewhere holds what later tokens see, no more."""
        name = self.new_name()
        held = Held(self.groups, Held.nothing(self.groups).missing(num_tokens, None), num_tokens)
        if not self.fits([held.held(g) for g in range(len(self.groups))]):
            self.fails_without_change(lambda: self.pages.resume(name, num_tokens), OutOfPages)
            return
        self.pages.resume(name, num_tokens)
        self.live[name] = held
        self.mark_fresh(name)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num_tokens=NUM_TOKENS, stop=STOP)
    def extend(self, data: st.DataObject, num_tokens: int, stop: int | None) -> None:
        name = self.any_name(data)
        held = self.live[name]
        num_tokens += held.committed
        stop = None if stop is None else min(stop + held.committed, num_tokens)
        can = self.pages.can_extend(name, num_tokens, stop)
        assert can == self.fits(held.missing(num_tokens, stop))
        if not can:
            self.fails_without_change(lambda: self.pages.extend(name, num_tokens, stop), OutOfPages)
            return
        self.pages.extend(name, num_tokens, stop)
        held.extend(num_tokens, stop)
        self.mark_fresh(name)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Some steps of one sequence, of which some end just where a page is left behind."""
        name = self.any_name(data)
        held = self.live[name]
        for _ in range(data.draw(st.integers(1, 4))):
            most = min(held.capacity, held.committed + 60)
            edges = [n for n in range(held.committed, most) if held.releases_at(n + 1)]
            edge = data.draw(st.sampled_from([most, *edges[:4]]))
            upto = min(most, edge + data.draw(st.integers(0, 1)))
            before = set(self.pages_of(name))
            self.pages.commit(name, upto)
            held.committed = upto
            self.forget(before - set(self.pages_of(name)))
            self.tables_have_the_pages_that_the_tokens_need()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        name, child = self.any_name(data), self.new_name()
        held = self.live[name].fork()
        counts = [held.held(g) - held.shared(g) for g in range(len(self.groups))]
        if not self.fits(counts):
            self.fails_without_change(lambda: self.pages.fork(name, child), OutOfPages)
            return
        self.pages.fork(name, child)
        self.live[child] = held
        for g, (own, parents) in enumerate(self.both_tables(child, name)):
            shared = held.shared(g)
            assert own[:shared] == parents[:shared]
            assert not set(own[shared:]) & set(parents), "who writes writes for both"
            for copy, source in zip(own[shared:], parents[shared:], strict=False):
                assert (self.bytes_of(g, copy) == self.marks[g, source]).all()
                self.mark(g, copy)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name = self.any_name(data)
        before = set(self.pages_of(name))
        self.pages.free(name)
        del self.live[name]
        self.forget(before)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def calls_that_are_wrong_change_nothing(self, data: st.DataObject) -> None:
        name, other = self.any_name(data), self.any_name(data)
        held = self.live[name]
        wrong: list[tuple[Callable[[], None], type[Exception]]] = [
            (lambda: self.pages.admit(name, 1), ValueError),
            (lambda: self.pages.resume(name, 1), ValueError),
            (lambda: self.pages.fork(other, name), ValueError),
            (lambda: self.pages.fork("nobody", "child"), KeyError),
            (lambda: self.pages.extend("nobody", 1), KeyError),
            (lambda: self.pages.free("nobody"), KeyError),
            (lambda: self.pages.commit(name, held.committed - 1), AssertionError),
            (lambda: self.pages.commit(name, held.capacity + 1), AssertionError),
        ]
        for call, error in wrong:
            self.fails_without_change(call, error)

    @invariant()
    def tables_have_the_pages_that_the_tokens_need(self) -> None:
        assert [*getattr(self, "pages", ())] == [*self.live]
        for name, held in self.live.items():
            assert self.pages.capacity(name) == held.capacity
            assert self.pages.num_committed(name) == held.committed
            for g, table in enumerate(self.pages.tables(name)):
                assert (table.num_released, len(table)) == (held.released(g), held.held(g))

    @invariant()
    def kernel_ids_are_in_step_with_physical_ids(self) -> None:
        for name in self.live:
            for group, table in zip(self.groups, self.pages.tables(name), strict=True):
                r = group.blocks_per_page
                expected = [page * r + block for page in table.physical_ids for block in range(r)]
                assert table.kernel_ids.array.tolist() == expected
                assert table.kernel_ids_from(r).tolist() == expected[r:]

    @invariant()
    def pages_have_as_many_references_as_tables_have_them(self) -> None:
        holders = Counter(page for name in self.live for page in self.pages_of(name))
        assert holders.keys() == self.marks.keys()
        for (g, page), count in holders.items():
            assert self.pool.allocator.references(g, page) == count

    @invariant()
    def bytes_of_live_pages_are_disjoint(self) -> None:
        ranges = sorted(
            (page * self.groups[g].page_stride, (page + 1) * self.groups[g].page_stride)
            for g, page in self.marks
        )
        for (_, end), (start, _) in itertools.pairwise(ranges):
            assert end <= start
        assert not ranges or 0 <= ranges[0][0] <= ranges[-1][1] <= self.pool.plan.pool_bytes
        for (g, page), mark in self.marks.items():
            assert (self.bytes_of(g, page) == mark).all()
        if hasattr(self, "pool"):
            self.pool.assert_nobody_writes_into_free_pages()

    @invariant()
    def free_and_live_pages_are_the_pool_and_structures_stay_bounded(self) -> None:
        if not hasattr(self, "pool"):
            return
        allocator, num_slabs = self.pool.allocator, self.pool.plan.num_slabs
        live_slabs = self.live_slabs()
        assert allocator.num_free_slabs == num_slabs - sum(map(len, live_slabs))
        for g, (group, slabs) in enumerate(zip(self.groups, live_slabs, strict=True)):
            num_live = sum(of == g for of, _ in self.marks)
            assert allocator.num_live_pages(g) == num_live
            assert allocator.num_free_pages(g) == len(slabs) * group.pages_per_slab - num_live
        # Every page is free or live, every slab free or in two places of its group.
        most_pages = max(group.pages_per_slab for group in self.groups)
        assert entries(allocator) <= self.empty_size + num_slabs * (most_pages + 2)

    def teardown(self) -> None:
        for name in self.live:
            self.pages.free(name)
        if hasattr(self, "pool"):
            assert self.pool.allocator.num_free_slabs == self.pool.plan.num_slabs
            assert entries(self.pool.allocator) == self.empty_size

    def new_name(self) -> str:
        self.num_names += 1
        return f"sequence {self.num_names:03}"

    def any_name(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.live)))

    def fits(self, counts: list[int]) -> bool:
        """What the pool should answer, from the live pages alone."""
        free_slabs = self.pool.plan.num_slabs
        for g, (group, slabs) in enumerate(zip(self.groups, self.live_slabs(), strict=True)):
            num_live = sum(of == g for of, _ in self.marks)
            num_missing = max(0, num_live + counts[g] - len(slabs) * group.pages_per_slab)
            free_slabs -= len(slabs) + -(-num_missing // group.pages_per_slab)
        return free_slabs >= 0

    def live_slabs(self) -> list[set[int]]:
        """For each group the slabs in which it has a live page."""
        slabs: list[set[int]] = [set() for _ in self.groups]
        for g, page in self.marks:
            slabs[g].add(page // self.groups[g].pages_per_slab)
        return slabs

    def mark_fresh(self, name: str) -> None:
        """Paints the pages that a sequence got just now."""
        for g, page in self.pages_of(name):
            if (g, page) not in self.marks:
                self.mark(g, page)

    def mark(self, g: int, page: PhysicalId) -> None:
        self.marks[g, page] = 1 + (sum(self.marks.values()) + len(self.marks)) % 250
        self.bytes_of(g, page)[:] = self.marks[g, page]

    def forget(self, pages: set[tuple[int, PhysicalId]]) -> None:
        """Forgets pages that one holder gave back, unless another has them still."""
        others = {page for name in self.live for page in self.pages_of(name)}
        for page in pages - others:
            del self.marks[page]

    def pages_of(self, name: str) -> Iterator[tuple[int, PhysicalId]]:
        for g, table in enumerate(self.pages.tables(name)):
            for page in table.physical_ids:
                yield g, page

    def both_tables(self, a: str, b: str) -> Iterator[tuple[list[PhysicalId], list[PhysicalId]]]:
        for one, other in zip(self.pages.tables(a), self.pages.tables(b), strict=True):
            yield one.physical_ids, other.physical_ids

    def bytes_of(self, g: int, page: PhysicalId) -> np.ndarray:
        return self.pool.flat[self.pool.span(g, page)]

    def fails_without_change(self, call: Callable[[], None], error: type[Exception]) -> None:
        before = self.snapshot()
        with pytest.raises(error):
            call()
        assert self.snapshot() == before

    def snapshot(self) -> tuple[object, ...]:
        allocator = self.pool.allocator
        tables = {name: list(self.pages_of(name)) for name in self.pages}
        groups = [repr(vars(group)) for group in allocator._groups]
        whole = (allocator._free_slabs,)
        return repr(whole), groups, tables, self.pool.flat.tobytes()


TestPages = PagesMachine.TestCase
TestPages.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, derandomize=True
)
