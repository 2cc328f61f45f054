"""Page tables, and the two kinds of ids in them.

A page has a physical id, which the pool knows, and `r = page_size //
kernel_block_size` kernel ids, which kernels know: page `p` is the kernel blocks
`p * r .. p * r + r - 1`. The two are different types, and `PageTable.append` is
the only place that turns one into the other, so no id is converted twice.
"""

from collections.abc import Iterable
from typing import NewType

import numpy as np
from jaxtyping import Int32

PhysicalId = NewType("PhysicalId", int)
"""Index of a page in its group's view of the pool."""

KernelIds = NewType("KernelIds", np.ndarray)
"""int32 indices of kernel blocks in their group's view of the pool."""


class PageTable:
    """The pages of one sequence in one group, in token order."""

    def __init__(self, blocks_per_page: int) -> None:
        self._blocks_per_page = blocks_per_page
        self._physical: list[PhysicalId] = []
        self._kernel: Int32[np.ndarray, " capacity"] = np.empty(8 * blocks_per_page, np.int32)

    def __len__(self) -> int:
        """The number of pages."""
        return len(self._physical)

    @property
    def physical_ids(self) -> tuple[PhysicalId, ...]:
        """One id per page."""
        return tuple(self._physical)

    @property
    def kernel_ids(self) -> KernelIds:
        """One id per kernel block: a view, valid until the table changes."""
        return KernelIds(self._kernel[: len(self._physical) * self._blocks_per_page])

    def append(self, pages: Iterable[PhysicalId]) -> None:
        """Adds pages behind the last."""
        r = self._blocks_per_page
        for page in pages:
            start = len(self._physical) * r
            if start + r > len(self._kernel):
                self._kernel = np.concatenate([self._kernel, np.empty_like(self._kernel)])
            self._kernel[start : start + r] = np.arange(page * r, page * r + r, dtype=np.int32)
            self._physical.append(page)

    def truncate(self, num_pages: int) -> list[PhysicalId]:
        """Keeps the first `num_pages` pages and returns the others."""
        removed = self._physical[num_pages:]
        del self._physical[num_pages:]
        return removed
