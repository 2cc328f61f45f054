"""The pool as memory to be transferred: which bytes hold which pages.

All layers of a group stand side by side in each of its pages, so a page is one run of
bytes whatever the number of layers, and pages that lie side by side are one run too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.plan import CachePlan


@dataclass(frozen=True, slots=True)
class CacheRegions:
    """The pool as one region of memory, to be registered once for transfers.

    `address` is that of its first byte on `device`; offsets count from there. The region
    lives as long as the engine does.
    """

    address: int
    num_bytes: int
    device: torch.device
    plan: CachePlan

    def of(self, group: str, pages: Iterable[PhysicalId]) -> list[tuple[int, int]]:
        """The fewest `(offset, length)` in bytes that cover these pages of a group, ascending.

        Each covers whole pages, with all of the group's layers and its padding.

        Raises:
            ValueError: there is no such group, or no such page.
        """
        names = [plan.name for plan in self.plan.groups]
        if group not in names:
            raise ValueError(f"group={group!r} should be one of {names}")
        plan = self.plan.group(group)
        num_pages = self.plan.num_slabs * plan.pages_per_slab
        runs: list[tuple[int, int]] = []
        for page in sorted(set(pages)):
            if not 0 <= page < num_pages:
                raise ValueError(f"group {group!r} has no page {page}; it has {num_pages}")
            offset, length = page * plan.page_stride, plan.page_stride
            if runs and sum(runs[-1]) == offset:
                offset, length = runs[-1][0], runs.pop()[1] + length
            runs.append((offset, length))
        return runs
