"""The pool: the one allocation that all cached layers have their views of."""

import mmap
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.plan import CachePlan, GroupPlan, LayerPlan
from hybridrt.cache.slabs import SlabAllocator

POISON = 0xFF  # every float format reads these bytes as NaN


class PageCopy(NamedTuple):
    """The bytes of one page of a group, to be copied into another."""

    group: int
    source: PhysicalId
    target: PhysicalId


class Pool:
    """`uint8[num_slabs, slab_bytes]`, zeroed, and who holds which of its pages.

    With `poison_freed_pages` a freed page is overwritten with NaN, so that
    whoever reads it afterwards is found at once.
    """

    def __init__(
        self, plan: CachePlan, device: torch.device, *, poison_freed_pages: bool = False
    ) -> None:
        self.plan = plan
        self.allocator = _allocator(plan)
        self._poison = poison_freed_pages
        self.bytes = _zeros(plan.num_slabs, plan.slab_bytes, device)
        flat = self.bytes.view(-1)
        self._pages = [flat.unflatten(0, (-1, group.page_stride)) for group in plan.groups]

    def blocks(self, group: GroupPlan) -> UInt8[Tensor, "num_blocks block_stride"]:
        """The whole pool as kernel blocks of one group, its padding included."""
        stride = group.block_stride
        return self.bytes.view(-1).unflatten(0, (-1, stride))

    def layer_pages(self, layer: LayerPlan) -> UInt8[Tensor, "num_blocks layer_bytes"]:
        """The rows that a layer binds: its bytes of every kernel block of its group."""
        blocks = self.blocks(self.plan.group(layer.group))
        return blocks[:, layer.offset : layer.offset + layer.block_bytes]

    def can_allocate(self, counts: Sequence[int]) -> bool:
        """Whether `allocate(counts)` would succeed."""
        return self.allocator.can_allocate(counts)

    def allocate(self, counts: Sequence[int]) -> list[list[PhysicalId]]:
        """`counts[g]` pages of every group g, or `OutOfPages` and no change."""
        pages = self.try_allocate(counts)
        return self.allocator.allocate(counts) if pages is None else pages  # it says why not

    def try_allocate(self, counts: Sequence[int]) -> list[list[PhysicalId]] | None:
        """`counts[g]` pages of every group g, or None and no change."""
        return self.allocator.try_allocate(counts)

    def release(self, group: int, pages: Iterable[PhysicalId]) -> None:
        """Takes one holder from each of these pages; who has none left is free, unless kept."""
        freed = self.allocator.release(group, pages)
        if self._poison:
            self._poison_pages(group, freed)

    def drop(self, group: int, pages: Iterable[PhysicalId]) -> None:
        """Keeps each of these pages no longer; without a holder it is free."""
        freed = self.allocator.drop(group, pages)
        if self._poison:
            self._poison_pages(group, freed)

    def copy(self, copies: Iterable[PageCopy]) -> None:
        """Copies pages, each within its group."""
        for group, source, target in copies:
            pages = self._pages[group]
            pages[target].copy_(pages[source])

    def reset(self) -> None:
        """Frees all pages, whoever has them."""
        self.allocator = _allocator(self.plan)
        if self._poison:
            self.bytes.fill_(POISON)

    def _poison_pages(self, group: int, freed: list[PhysicalId]) -> None:
        if freed:
            self._pages[group][torch.tensor(freed)] = POISON


def _zeros(num_slabs: int, slab_bytes: int, device: torch.device) -> UInt8[Tensor, "slabs bytes"]:
    """From the first one on whole lines of memory; on a CPU nothing is written.

    The system gives zeros where something is first read or written: to write them all, as torch
    does, takes seconds for a pool of some GiB, most of which few programs ever use. It gives small
    pages, as numpy's zeros would not be: a large one is cleared as a whole while a step waits.
    """
    size = num_slabs * slab_bytes
    if device.type != "cpu" or os.name != "posix" or size == 0:
        return torch.zeros(num_slabs, slab_bytes, dtype=torch.uint8, device=device)
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Not a view of a tensor: torch's compiler takes views for what they are views of.
    return torch.from_numpy(np.frombuffer(room, np.uint8).reshape(num_slabs, slab_bytes))


def _allocator(plan: CachePlan) -> SlabAllocator:
    return SlabAllocator(plan.num_slabs, [group.pages_per_slab for group in plan.groups])
