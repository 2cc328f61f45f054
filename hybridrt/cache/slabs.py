"""Which slabs and pages are free: the bookkeeping of the pool, without its bytes.

A slab belongs to one group at a time, which cuts it into its own number of
equal pages: page `p` of a group lies in slab `p // pages_per_slab`. A slab goes
back to all groups when the last of its pages is free. What was never used is
taken first, then what has been free for longest. Everything is O(1) per page, and
memory is bounded by the number of slabs and live pages.
"""

from collections import deque
from collections.abc import Sequence

from hybridrt.cache.page_table import PhysicalId


class OutOfPages(MemoryError):  # noqa: N818 (as MemoryError itself)
    """The pool can't give what was asked for; nothing was changed."""


class _Group:
    """One group's slabs, with those of the fewest free pages first in line.

    Filling the fullest slabs first leaves the emptiest to become free.
    """

    def __init__(self, pages_per_slab: int) -> None:
        self.pages_per_slab = pages_per_slab
        self.num_free = 0
        self._free_pages: dict[int, deque[int]] = {}  # slab -> its free pages
        self._slabs_with: list[dict[int, None]] = [{} for _ in range(pages_per_slab + 1)]
        self._nonempty = 0  # bit f is set: some slab has f > 0 free pages

    def add_slab(self, slab: int) -> None:
        first = slab * self.pages_per_slab
        self._free_pages[slab] = deque(range(first, first + self.pages_per_slab))
        self.num_free += self.pages_per_slab
        self._enter(slab, self.pages_per_slab)

    def take(self) -> PhysicalId:
        """A page of the fullest slab. There must be a free one."""
        fewest = (self._nonempty & -self._nonempty).bit_length() - 1
        slab = next(iter(self._slabs_with[fewest]))
        self._leave(slab, fewest)
        self._enter(slab, fewest - 1)
        self.num_free -= 1
        return PhysicalId(self._free_pages[slab].popleft())

    def give_back(self, page: PhysicalId) -> int | None:
        """Frees a page. Returns its slab if that is free as a whole now."""
        slab = page // self.pages_per_slab
        pages = self._free_pages[slab]
        self._leave(slab, len(pages))
        pages.append(page)
        self.num_free += 1
        if len(pages) < self.pages_per_slab:
            self._enter(slab, len(pages))
            return None
        del self._free_pages[slab]
        self.num_free -= self.pages_per_slab
        return slab

    @property
    def slabs(self) -> list[int]:
        return list(self._free_pages)

    def _enter(self, slab: int, num_free: int) -> None:
        self._slabs_with[num_free][slab] = None
        if num_free:
            self._nonempty |= 1 << num_free

    def _leave(self, slab: int, num_free: int) -> None:
        del self._slabs_with[num_free][slab]
        if not self._slabs_with[num_free]:
            self._nonempty &= ~(1 << num_free)


class SlabAllocator:
    """Hands out pages of several groups from one number of slabs, all or nothing.

    Pages carry a reference count: `allocate` makes it 1, `retain` adds one and
    `release` takes one away; at 0 the page is free.
    """

    def __init__(self, num_slabs: int, pages_per_slab: Sequence[int]) -> None:
        self.num_slabs = num_slabs
        self._free_slabs = deque(range(num_slabs))
        self._groups = [_Group(n) for n in pages_per_slab]
        self._references: list[dict[PhysicalId, int]] = [{} for _ in pages_per_slab]
        self._most_live = [0] * len(pages_per_slab)

    @property
    def num_free_slabs(self) -> int:
        return len(self._free_slabs)

    def slabs_of(self, group: int) -> list[int]:
        """The slabs that a group holds now."""
        return self._groups[group].slabs

    def num_free_pages(self, group: int) -> int:
        """Free pages in the slabs that the group holds already."""
        return self._groups[group].num_free

    def num_live_pages(self, group: int) -> int:
        return len(self._references[group])

    def most_live_pages(self, group: int) -> int:
        """The most pages that were live at once, ever or since `forget_most`."""
        return self._most_live[group]

    def forget_most(self) -> None:
        """Lets `most_live_pages` count anew."""
        self._most_live = [len(references) for references in self._references]

    def references(self, group: int, page: PhysicalId) -> int:
        """How many hold the page; 0: it is free."""
        return self._references[group].get(page, 0)

    def can_allocate(self, counts: Sequence[int]) -> bool:
        """Whether `allocate(counts)` would succeed; `counts` has one entry per group."""
        return sum(self._slabs_missing(counts)) <= len(self._free_slabs)

    def allocate(self, counts: Sequence[int]) -> list[list[PhysicalId]]:
        """Takes `counts[g]` pages of every group g, or raises and takes none.

        Raises:
            OutOfPages: there are not that many free pages.
        """
        missing = self._slabs_missing(counts)
        if sum(missing) > len(self._free_slabs):
            raise OutOfPages(
                f"{list(counts)} pages need {sum(missing)} more slabs; "
                f"{len(self._free_slabs)} of {self.num_slabs} are free"
            )
        return [self._take(g, counts[g], missing[g]) for g in range(len(self._groups))]

    def retain(self, group: int, page: PhysicalId) -> None:
        """Adds a holder to a live page."""
        self._references[group][page] += 1

    def release(self, group: int, page: PhysicalId) -> bool:
        """Takes a holder from a live page. Returns whether it is free now."""
        references = self._references[group]
        references[page] -= 1
        if references[page]:
            return False
        del references[page]
        slab = self._groups[group].give_back(page)
        if slab is not None:
            self._free_slabs.append(slab)
        return True

    def _slabs_missing(self, counts: Sequence[int]) -> list[int]:
        return [
            -(-max(0, count - group.num_free) // group.pages_per_slab)
            for group, count in zip(self._groups, counts, strict=True)
        ]

    def _take(self, index: int, count: int, num_slabs: int) -> list[PhysicalId]:
        group = self._groups[index]
        for _ in range(num_slabs):
            group.add_slab(self._free_slabs.popleft())
        pages = [group.take() for _ in range(count)]
        references = self._references[index]
        references.update(dict.fromkeys(pages, 1))
        self._most_live[index] = max(self._most_live[index], len(references))
        return pages
