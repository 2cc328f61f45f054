"""A pool that looks at what it hands out: zeros on first use, poison after that."""

from collections.abc import Iterable, Sequence

import numpy as np

from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.plan import CachePlan
from hybridrt.cache.pool import POISON, Pool
from tests.cache.stand_ins import CPU


class WatchedPool(Pool):
    """Freed pages are poisoned, and stay so. None that is handed out has bytes of another's."""

    def __init__(self, plan: CachePlan) -> None:
        super().__init__(plan, CPU, poison_freed_pages=True)
        self.flat = self.bytes.numpy().reshape(-1)
        self._held = np.zeros(len(self.flat), bool)
        self._if_free = np.zeros(len(self.flat), np.uint8)

    def try_allocate(self, counts: Sequence[int]) -> list[list[PhysicalId]] | None:
        pages = super().try_allocate(counts)
        for g, fresh in enumerate(pages or ()):
            for page in fresh:
                span = self.span(g, page)
                assert not self._held[span].any(), "a page has bytes of another"
                assert (self.flat[span] == self._if_free[span]).all(), "it holds what another left"
                self._held[span] = True
                self._if_free[span] = POISON
        return pages

    def release(self, group: int, pages: Iterable[PhysicalId]) -> None:
        pages = list(pages)
        super().release(group, pages)
        for page in pages:
            self._note_if_free(group, page)

    def drop(self, group: int, pages: Iterable[PhysicalId]) -> None:
        pages = list(pages)
        super().drop(group, pages)
        for page in pages:
            self._note_if_free(group, page)

    def _note_if_free(self, group: int, page: PhysicalId) -> None:
        if self.allocator.references(group, page) or self.allocator.is_cached(group, page):
            return
        span = self.span(group, page)
        assert (self.flat[span] == POISON).all()
        self._held[span] = False

    def assert_nobody_writes_into_free_pages(self) -> None:
        """What is free holds zeros if it was never held, and poison if it was."""
        assert (self._held | (self.flat == self._if_free)).all()

    def span(self, group: int, page: PhysicalId) -> slice:
        """The bytes of a page."""
        stride = self.plan.groups[group].page_stride
        return slice(page * stride, (page + 1) * stride)
