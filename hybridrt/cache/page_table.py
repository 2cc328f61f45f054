"""Page tables, and the two kinds of ids in them.

A page has a physical id, which the pool knows, and `r = page_size //
kernel_block_size` kernel ids, which kernels know: page `p` is the kernel blocks
`p * r .. p * r + r - 1`. The two are different types, and `to_kernel_ids` is the only
place that turns one into the other, so no id is converted twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

import numpy as np
from jaxtyping import Int32

PhysicalId = NewType("PhysicalId", int)
"""Index of a page in its group's view of the pool."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelIds:
    """Indices of kernel blocks in their group's view of the pool. No sequence of ids itself."""

    array: Int32[np.ndarray, " blocks"]


def to_kernel_ids(pages: Sequence[PhysicalId], blocks_per_page: int) -> KernelIds:
    """The kernel blocks of these pages, in order.

    Raises:
        TypeError: `pages` are kernel ids already.
    """
    if isinstance(pages, KernelIds):
        raise TypeError("these are kernel ids already; a page's id is converted once")
    ids = np.array(pages, np.int32)
    if blocks_per_page > 1:
        ids = (ids[:, None] * blocks_per_page + np.arange(blocks_per_page, dtype=np.int32)).ravel()
    return KernelIds(ids)


class PageTable:
    """The pages of one sequence in one group, in token order, under both kinds of ids.

    `num_released` pages in front have been given back, since no token sees them any more.
    """

    __slots__ = ("_blocks_per_page", "_kernel", "_physical", "num_released")

    def __init__(self, blocks_per_page: int, pages: Sequence[PhysicalId] = ()) -> None:
        self._blocks_per_page = blocks_per_page
        self._physical: list[PhysicalId] = []
        self._kernel: Int32[np.ndarray, " capacity"] = np.empty(8 * blocks_per_page, np.int32)
        self.num_released = 0
        self.append(pages)

    def __len__(self) -> int:
        """The number of pages."""
        return len(self._physical)

    @property
    def physical_ids(self) -> list[PhysicalId]:
        """One id per page. To be read only."""
        return self._physical

    @property
    def kernel_ids(self) -> KernelIds:
        """One id per kernel block: a view, valid until the table changes."""
        return KernelIds(self._kernel[: len(self._physical) * self._blocks_per_page])

    def kernel_ids_from(self, start: int) -> Int32[np.ndarray, " blocks"]:
        """The ids of `kernel_ids` from the kernel block `start` on, as a plain array."""
        return self._kernel[start : len(self._physical) * self._blocks_per_page]

    def append(self, pages: Sequence[PhysicalId]) -> None:
        """Adds pages behind the last."""
        begin = len(self._physical) * self._blocks_per_page
        end = begin + len(pages) * self._blocks_per_page
        if end > len(self._kernel):
            more = np.empty(max(end, 2 * len(self._kernel)), np.int32)
            more[:begin] = self._kernel[:begin]
            self._kernel = more
        self._physical.extend(pages)
        if end - begin == 1:  # the usual case, without a detour through an array
            self._kernel[begin] = pages[0]
        else:
            self._kernel[begin:end] = to_kernel_ids(pages, self._blocks_per_page).array

    def pop(self) -> PhysicalId:
        """Takes the last page out."""
        return self._physical.pop()

    def resize(self, num_pages: int) -> list[PhysicalId]:
        """Keeps the first `num_pages` pages and returns the others."""
        removed = self._physical[num_pages:]
        del self._physical[num_pages:]
        return removed

    def remove(self, start: int, stop: int) -> list[PhysicalId]:
        """Takes pages `start` to `stop - 1` out; those behind move up."""
        r = self._blocks_per_page
        removed = self._physical[start:stop]
        end = len(self._physical) * r
        behind = self._kernel[stop * r : end].copy()
        del self._physical[start:stop]
        self._kernel[start * r : start * r + len(behind)] = behind
        return removed

    def release(self, num_pages: int) -> list[PhysicalId]:
        """Takes out the first `num_pages` pages, whose tokens are not seen any more."""
        self.num_released += num_pages
        return self.remove(0, num_pages)

    def set(self, index: int, page: PhysicalId) -> PhysicalId:
        """Puts a page in the place of another, which it returns."""
        before, self._physical[index] = self._physical[index], page
        r = self._blocks_per_page
        if r == 1:  # the usual case, as in `append`
            self._kernel[index] = page
        else:
            self._kernel[index * r : index * r + r] = to_kernel_ids([page], r).array
        return before

    def swap(self, a: int, b: int) -> None:
        """Lets two pages change places."""
        self.set(b, self.set(a, self._physical[b]))
