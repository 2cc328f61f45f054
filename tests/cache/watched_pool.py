"""A pool that looks at what it hands out: zeros on first use, poison after that."""

from collections.abc import Iterable, Sequence

import numpy as np

from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.plan import CachePlan
from hybridrt.cache.pool import POISON, Pool
from tests.cache.stand_ins import CPU


class WatchedPool(Pool):
    """Freed pages are poisoned. A page that is handed out has no bytes of another's."""

    def __init__(self, plan: CachePlan) -> None:
        super().__init__(plan, CPU, poison_freed_pages=True)
        self.flat = self.bytes.numpy().reshape(-1)
        self._ever_held = np.zeros(len(self.flat), bool)

    def allocate(self, counts: Sequence[int]) -> list[list[PhysicalId]]:
        pages = super().allocate(counts)
        for g, fresh in enumerate(pages):
            for page in fresh:
                span = self.span(g, page)
                expected = np.where(self._ever_held[span], POISON, 0)
                assert (self.flat[span] == expected).all(), "a page holds what another left"
                self._ever_held[span] = True
        return pages

    def release(self, group: int, pages: Iterable[PhysicalId]) -> None:
        pages = list(pages)
        super().release(group, pages)
        for page in pages:
            if not self.allocator.references(group, page):
                assert (self.flat[self.span(group, page)] == POISON).all()

    def span(self, group: int, page: PhysicalId) -> slice:
        """The bytes of a page."""
        stride = self.plan.groups[group].page_stride
        return slice(page * stride, (page + 1) * stride)
