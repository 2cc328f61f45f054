"""The pages of every sequence in the engine: admit, extend, commit, fork, free."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hybridrt.cache.page_table import PageTable, PhysicalId
from hybridrt.cache.plan import UNENDING, GroupPlan
from hybridrt.cache.pool import PageCopy, Pool


@dataclass(slots=True)
class _Entry:
    """`capacity` tokens can be written now; at `next_release` a window leaves a page behind."""

    tables: tuple[PageTable, ...]
    capacity: int = 0
    num_committed: int = 0
    next_release: int = UNENDING


class SequencePages:
    """One page table per sequence and group, all of them changed together or not at all.

    A sequence is admitted with room for some tokens, extended before it gets more,
    and freed once. `commit` says that tokens were computed: only from then on may
    their pages be shared, since before that nothing stands in them, and may pages that
    no later token sees be given back.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._groups = pool.plan.groups
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: str) -> bool:
        return sequence in self._entries

    def __iter__(self) -> Iterator[str]:
        """The sequences, in the order in which they were admitted."""
        return iter(self._entries)

    def tables(self, sequence: str) -> tuple[PageTable, ...]:
        """One page table per group of the plan."""
        return self._entries[sequence].tables

    def capacity(self, sequence: str) -> int:
        """How many tokens, from the first on, the sequence has room for in every group."""
        return self._entries[sequence].capacity

    def num_committed(self, sequence: str) -> int:
        """Tokens whose cache has been written."""
        return self._entries[sequence].num_committed

    def can_admit(self, num_tokens: int, stop: int | None = None) -> bool:
        """Whether `admit` of a new sequence with these numbers would succeed."""
        return self._pool.can_allocate(self._missing(None, num_tokens, stop))

    def admit(self, sequence: str, num_tokens: int, stop: int | None = None) -> None:
        """Gives a new sequence room for `num_tokens`, in window groups for `stop` of them.

        `stop` is where the first step ends; None: at the last token.

        Raises:
            ValueError: the sequence is there already.
            OutOfPages: there is no room; nothing was changed.
        """
        if sequence in self._entries:
            raise ValueError(f"sequence {sequence!r} is in the cache already")
        pages = self._pool.allocate(self._missing(None, num_tokens, stop))
        tables = zip(self._groups, pages, strict=True)
        entry = _Entry(tuple(PageTable(group.blocks_per_page, new) for group, new in tables))
        self._entries[sequence] = entry
        self._measure(entry)

    def resume(self, sequence: str, num_tokens: int) -> None:
        """Admits a sequence whose first `num_tokens` tokens were computed elsewhere.

        It gets pages for those that later tokens see; their contents are to be written.

        Raises:
            ValueError: the sequence is there already.
            OutOfPages: there is no room; nothing was changed.
        """
        if sequence in self._entries:
            raise ValueError(f"sequence {sequence!r} is in the cache already")
        firsts = [group.first_kept(num_tokens) for group in self._groups]
        pages = self._pool.allocate(
            [g.pages_for(num_tokens, first) for g, first in zip(self._groups, firsts, strict=True)]
        )
        tables: list[PageTable] = []
        for group, first, new in zip(self._groups, firsts, pages, strict=True):
            table = PageTable(group.blocks_per_page, new)
            table.num_released = first // (group.page_size or 1)
            tables.append(table)
        self._entries[sequence] = entry = _Entry(tuple(tables), num_committed=num_tokens)
        self._measure(entry)

    def can_extend(self, sequence: str, num_tokens: int, stop: int | None = None) -> bool:
        """Whether `extend` with these numbers would succeed."""
        return self._pool.can_allocate(self._missing(self._entries[sequence], num_tokens, stop))

    def extend(self, sequence: str, num_tokens: int, stop: int | None = None) -> None:
        """Gives a sequence room for `num_tokens` in all, in window groups for `stop` of them.

        Raises:
            OutOfPages: there is no room; nothing was changed.
        """
        entry = self._entries[sequence]
        pages = self._pool.allocate(self._missing(entry, num_tokens, stop))
        for table, new in zip(entry.tables, pages, strict=True):
            if new:
                table.append(new)
        self._measure(entry)

    def commit(self, sequence: str, num_tokens: int) -> None:
        """Says that the first `num_tokens` tokens are in the cache now."""
        entry = self._entries[sequence]
        assert entry.num_committed <= num_tokens <= entry.capacity, (sequence, num_tokens, entry)
        entry.num_committed = num_tokens
        if num_tokens >= entry.next_release:
            self._release_unseen(entry)

    def fork(self, sequence: str, child: str) -> None:
        """Gives a new sequence the committed tokens of another.

        Full pages are shared. The last one, if tokens will be written into it, and states,
        which change in place, are copied.

        Raises:
            ValueError: the child is there already.
            OutOfPages: there is no room for the copies; nothing was changed.
        """
        if child in self._entries:
            raise ValueError(f"sequence {child!r} is in the cache already")
        parent = self._entries[sequence]
        shared, copied = self._fork_pages(parent)
        fresh = self._pool.allocate([len(pages) for pages in copied])
        tables: list[PageTable] = []
        copies: list[PageCopy] = []
        for g, group in enumerate(self._groups):
            for page in shared[g]:
                self._pool.allocator.retain(g, page)
            table = PageTable(group.blocks_per_page, [*shared[g], *fresh[g]])
            table.num_released = parent.tables[g].num_released
            tables.append(table)
            pairs = zip(copied[g], fresh[g], strict=True)
            copies += [PageCopy(g, source, target) for source, target in pairs]
        self._pool.copy(copies)
        entry = _Entry(tuple(tables), num_committed=parent.num_committed)
        self._entries[child] = entry
        self._measure(entry)

    def free(self, sequence: str) -> None:
        """Gives back all pages of a sequence."""
        entry = self._entries.pop(sequence)
        for index, table in enumerate(entry.tables):
            self._pool.release(index, table.resize(0))

    def _missing(self, entry: _Entry | None, num_tokens: int, stop: int | None) -> list[int]:
        """Pages of each group that a sequence doesn't have yet."""
        counts: list[int] = []
        for g, group in enumerate(self._groups):
            end = num_tokens if stop is None or group.window is None else stop
            count = group.pages_for(end)
            if entry is not None:
                table = entry.tables[g]
                count -= table.num_released + len(table)
            counts.append(max(0, count))
        return counts

    def _measure(self, entry: _Entry) -> None:
        """Notes how far the pages reach, so that nobody has to count them at every token."""
        capacity, release = UNENDING, UNENDING
        for group, table in zip(self._groups, entry.tables, strict=True):
            if group.page_size is None:
                capacity = capacity if len(table) == group.parts else 0
                continue
            capacity = min(capacity, (table.num_released + len(table)) * group.page_size)
            if group.window is not None:
                last_of_first = (table.num_released + 1) * group.page_size - 1
                release = min(release, group.window.unseen_from(last_of_first))
        entry.capacity, entry.next_release = capacity, release

    def _release_unseen(self, entry: _Entry) -> None:
        for g, (group, table) in enumerate(zip(self._groups, entry.tables, strict=True)):
            if group.window is None or group.page_size is None:
                continue
            first = group.first_kept(entry.num_committed) // group.page_size
            if first > table.num_released:
                self._pool.release(g, table.release(first - table.num_released))
        self._measure(entry)

    def _fork_pages(
        self, entry: _Entry
    ) -> tuple[list[Sequence[PhysicalId]], list[Sequence[PhysicalId]]]:
        """In each group, the pages that a child can share and those that it needs copies of."""
        shared: list[Sequence[PhysicalId]] = []
        copied: list[Sequence[PhysicalId]] = []
        for group, table in zip(self._groups, entry.tables, strict=True):
            full, held = _committed_pages(group, table, entry.num_committed)
            shared.append(table.physical_ids[:full])
            copied.append(table.physical_ids[full:held])
        return shared, copied


def _committed_pages(group: GroupPlan, table: PageTable, num_tokens: int) -> tuple[int, int]:
    """Of a table's pages, how many are full, and how many hold something."""
    if group.page_size is None:
        return 0, len(table) if num_tokens else 0
    held = group.pages_for(num_tokens) - table.num_released
    return num_tokens // group.page_size - table.num_released, held
