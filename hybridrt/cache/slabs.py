"""Which slabs and pages are free: the bookkeeping of the pool, without its bytes.

A slab belongs to one group at a time, which cuts it into its own number of
equal pages: page `p` of a group lies in slab `p // pages_per_slab`. A slab goes
back to all groups when the last of its pages is free. What was never used is
taken first, then what has been free for longest. Everything is O(1) per page, and
memory is bounded by the number of slabs and of pages in use or kept.

A page in use has holders. One that is kept for later stays as it is when the last of
them lets go: it is cached, and whoever needs its room may drop it.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import cast

from hybridrt.cache.page_table import PhysicalId

NOBODY = -1  # in the place of a slab
KEPT = 1 << 16  # what one who keeps a page adds to its claims, of which holders have the rest
HOLDERS = KEPT - 1


class OutOfPages(MemoryError):  # noqa: N818 (as MemoryError itself)
    """The pool can't give what was asked for; nothing was changed."""


class _Line:
    """Slabs that have free pages, those of the fewest first: a linked list for each number."""

    def __init__(self, num_slabs: int, most_free: int) -> None:
        self._first = [NOBODY] * (most_free + 1)
        self._next = [NOBODY] * num_slabs
        self._previous = [NOBODY] * num_slabs
        self._nonempty = 0  # bit f is set: some slab has f free pages

    def __bool__(self) -> bool:
        return self._nonempty != 0

    def fewest(self) -> tuple[int, int]:
        """A slab of the fewest free pages, and how many it has."""
        num_free = (self._nonempty & -self._nonempty).bit_length() - 1
        return self._first[num_free], num_free

    def enter(self, slab: int, num_free: int) -> None:
        """Puts a slab in line, if it has any free page."""
        if not num_free:
            return
        first = self._first[num_free]
        self._first[num_free] = slab
        self._next[slab], self._previous[slab] = first, NOBODY
        if first == NOBODY:
            self._nonempty |= 1 << num_free
        else:
            self._previous[first] = slab

    def leave(self, slab: int, num_free: int) -> None:
        """Takes a slab out that entered with so many free pages."""
        if not num_free:
            return
        before, behind = self._previous[slab], self._next[slab]
        if behind != NOBODY:
            self._previous[behind] = before
        if before != NOBODY:
            self._next[before] = behind
            return
        self._first[num_free] = behind
        if behind == NOBODY:
            self._nonempty ^= 1 << num_free


class _Group:
    """One group's slabs. Filling the fullest ones first leaves the emptiest to become free."""

    def __init__(self, num_slabs: int, pages_per_slab: int) -> None:
        self.pages_per_slab = pages_per_slab
        self.claims = array("i", bytes(4 * num_slabs * pages_per_slab))
        """Of each page: its holders, and `KEPT` for everyone who keeps it. 0: it is free."""
        self.num_free = 0
        self.num_in_use = 0
        self.num_slabs_in_use = 0
        self._in_use = array("i", bytes(4 * num_slabs))  # pages in use of each slab
        self._free_pages: dict[int, list[PhysicalId]] = {}  # slab -> its free pages
        self._line = _Line(num_slabs, pages_per_slab - 1)

    def take(self, count: int, new_slabs: Iterable[int]) -> list[PhysicalId]:
        """So many pages of the fullest slabs, then of new ones, all of which are needed for it."""
        taken: list[PhysicalId] = []
        wanted, line, in_use = count, self._line, self._in_use
        while wanted and line:
            slab, num_free = line.fewest()
            free = self._free_pages[slab]
            some = free[:wanted]
            del free[:wanted]
            line.leave(slab, num_free)
            line.enter(slab, len(free))
            if not in_use[slab]:
                self.num_slabs_in_use += 1
            in_use[slab] += len(some)
            self.num_free -= len(some)
            wanted -= len(some)
            taken += some
        size = self.pages_per_slab
        for slab in new_slabs:
            free = cast(list[PhysicalId], [*range(slab * size, (slab + 1) * size)])
            some = free[:wanted]
            del free[:wanted]
            self._free_pages[slab] = free
            line.enter(slab, len(free))
            self.num_slabs_in_use += 1
            in_use[slab] = len(some)
            self.num_free += len(free)
            wanted -= len(some)
            taken += some
        claims = self.claims
        for page in taken:
            claims[page] = 1
        self.num_in_use += count
        return taken

    def keep(self, pages: Iterable[PhysicalId]) -> None:
        claims = self.claims
        for page in pages:
            claims[page] += KEPT

    def drop(self, pages: Iterable[PhysicalId]) -> list[PhysicalId]:
        """Returns those that nobody holds or keeps now."""
        claims = self.claims
        freed: list[PhysicalId] = []
        for page in pages:
            left = claims[page] - KEPT
            assert left >= 0, page
            claims[page] = left
            if not left:
                freed.append(page)
        return freed

    def retain(self, pages: Iterable[PhysicalId]) -> None:
        claims, in_use, size = self.claims, self._in_use, self.pages_per_slab
        for page in pages:
            claim = claims[page]
            assert claim, page
            claims[page] = claim + 1
            if not claim & HOLDERS:
                slab = page // size
                if not in_use[slab]:
                    self.num_slabs_in_use += 1
                in_use[slab] += 1
                self.num_in_use += 1

    def release(self, pages: Iterable[PhysicalId]) -> list[PhysicalId]:
        """Returns those that nobody holds or keeps now."""
        claims, in_use, size = self.claims, self._in_use, self.pages_per_slab
        unheld: list[int] = []  # the slabs of pages that nobody holds now
        freed: list[PhysicalId] = []
        for page in pages:
            claim = claims[page]
            assert claim & HOLDERS, page
            claims[page] = left = claim - 1
            if left & HOLDERS:
                continue
            unheld.append(page // size)
            if not left:
                freed.append(page)
        self.num_in_use -= len(unheld)
        for slab, count in Counter(unheld).items():
            in_use[slab] -= count
            if not in_use[slab]:
                self.num_slabs_in_use -= 1
        return freed

    def free(self, pages: Iterable[PhysicalId]) -> list[int]:
        """Puts pages that nobody claims in line. Returns the slabs that are free as a whole."""
        size, free_pages = self.pages_per_slab, self._free_pages
        whole: list[int] = []
        line = self._line
        for slab, freed in groupby(pages, lambda page: page // size):
            own = free_pages[slab]
            num_free = len(own)
            line.leave(slab, num_free)
            own += freed
            if len(own) < size:
                line.enter(slab, len(own))
                self.num_free += len(own) - num_free
            else:
                del free_pages[slab]
                self.num_free -= num_free
                whole.append(slab)
        return whole

    @property
    def slabs(self) -> list[int]:
        return list(self._free_pages)

    @property
    def num_slabs(self) -> int:
        return len(self._free_pages)


class SlabAllocator:
    """Hands out pages of several groups from one number of slabs, all or nothing.

    Pages count their holders: `allocate` makes it 1, `retain` adds one and `release`
    takes one away. At 0 a page is free, or cached if it is kept.
    """

    def __init__(self, num_slabs: int, pages_per_slab: Sequence[int]) -> None:
        self.num_slabs = num_slabs
        self._free_slabs = deque(range(num_slabs))
        self._groups = [_Group(num_slabs, n) for n in pages_per_slab]
        self._most_live = [0] * len(pages_per_slab)

    @property
    def num_free_slabs(self) -> int:
        return len(self._free_slabs)

    @property
    def num_unused_slabs(self) -> int:
        """Slabs that are free, or would be if nothing were cached."""
        return self.num_slabs - sum(group.num_slabs_in_use for group in self._groups)

    def claims(self, group: int) -> "array[int]":
        """One number per page of the group: 0 if it is free. To be read only."""
        return self._groups[group].claims

    def slabs_of(self, group: int) -> list[int]:
        """The slabs that a group holds now."""
        return self._groups[group].slabs

    def num_free_pages(self, group: int) -> int:
        """Free pages in the slabs that the group holds already."""
        return self._groups[group].num_free

    def num_live_pages(self, group: int) -> int:
        """Pages in use."""
        return self._groups[group].num_in_use

    def num_cached_pages(self, group: int) -> int:
        """Pages that nobody uses and that are kept."""
        own = self._groups[group]
        return own.num_slabs * own.pages_per_slab - own.num_free - own.num_in_use

    def most_live_pages(self, group: int) -> int:
        """The most pages that were in use at once, ever or since `forget_most`."""
        return self._most_live[group]

    def forget_most(self) -> None:
        """Lets `most_live_pages` count anew."""
        self._most_live = [group.num_in_use for group in self._groups]

    def references(self, group: int, page: PhysicalId) -> int:
        """How many hold the page; 0: it is free or cached."""
        return self._groups[group].claims[page] & HOLDERS

    def is_cached(self, group: int, page: PhysicalId) -> bool:
        """Whether nobody holds the page, and it is kept."""
        claim = self._groups[group].claims[page]
        return claim >= KEPT and not claim & HOLDERS

    def is_kept(self, group: int, page: PhysicalId) -> bool:
        """Whether the page stays as it is when nobody holds it any more."""
        return self._groups[group].claims[page] >= KEPT

    def can_allocate(self, counts: Sequence[int]) -> bool:
        """Whether there would be room for `counts[g]` pages of each group g without the cache."""
        slabs = len(self._free_slabs)
        for group, count in zip(self._groups, counts, strict=True):
            num_used = group.num_slabs_in_use
            missing = count + group.num_in_use - num_used * group.pages_per_slab
            slabs += group.num_slabs - num_used
            if missing > 0:
                slabs -= -(-missing // group.pages_per_slab)
        return slabs >= 0

    def are_free(self, counts: Sequence[int]) -> bool:
        """Whether there are `counts[g]` pages of each group g without dropping cached ones."""
        slabs = len(self._free_slabs)
        for group, count in zip(self._groups, counts, strict=True):
            if count > group.num_free:
                slabs -= -(-(count - group.num_free) // group.pages_per_slab)
        return slabs >= 0

    def allocate(self, counts: Sequence[int]) -> list[list[PhysicalId]]:
        """Takes `counts[g]` free pages of every group g, or raises and takes none.

        Raises:
            OutOfPages: there are not that many free pages.
        """
        taken = self.try_allocate(counts)
        if taken is None:
            raise OutOfPages(
                f"{list(counts)} pages need {sum(self._slabs_missing(counts))} more slabs; "
                f"{len(self._free_slabs)} of {self.num_slabs} are free"
            )
        return taken

    def try_allocate(self, counts: Sequence[int]) -> list[list[PhysicalId]] | None:
        """Takes `counts[g]` free pages of every group g. None: there are not that many."""
        missing = self._slabs_missing(counts)
        if sum(missing) > len(self._free_slabs):
            return None
        taken: list[list[PhysicalId]] = [[] for _ in self._groups]
        for g, count in enumerate(counts):
            if count:
                taken[g] = self._take(g, count, missing[g])
        return taken

    def keep(self, group: int, pages: Iterable[PhysicalId]) -> None:
        """Lets pages in use stay as they are when the last holder lets go, until dropped.

        Several may keep a page; as many have to drop it.
        """
        self._groups[group].keep(pages)

    def drop(self, group: int, pages: Iterable[PhysicalId]) -> list[PhysicalId]:
        """Keeps each of these pages no longer. Returns those that are free now."""
        freed = self._groups[group].drop(pages)
        if freed:
            self._free_slabs += self._groups[group].free(freed)
        return freed

    def retain(self, group: int, pages: Iterable[PhysicalId]) -> None:
        """Adds a holder to each of these pages, which are in use or cached."""
        self._groups[group].retain(pages)
        self._most_live[group] = max(self._most_live[group], self._groups[group].num_in_use)

    def release(self, group: int, pages: Iterable[PhysicalId]) -> list[PhysicalId]:
        """Takes a holder from each of these pages. Returns those that are free now."""
        freed = self._groups[group].release(pages)
        if freed:
            self._free_slabs += self._groups[group].free(freed)
        return freed

    def _slabs_missing(self, counts: Sequence[int]) -> list[int]:
        return [
            -(-(count - group.num_free) // group.pages_per_slab) if count > group.num_free else 0
            for group, count in zip(self._groups, counts, strict=True)
        ]

    def _take(self, index: int, count: int, num_slabs: int) -> list[PhysicalId]:
        group = self._groups[index]
        pages = group.take(count, [self._free_slabs.popleft() for _ in range(num_slabs)])
        self._most_live[index] = max(self._most_live[index], group.num_in_use)
        return pages
