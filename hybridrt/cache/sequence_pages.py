"""The pages of every sequence in the engine: admit, extend, commit, free."""

from collections.abc import Sequence
from dataclasses import dataclass

from hybridrt.cache.page_table import PageTable
from hybridrt.cache.pool import Pool


@dataclass(slots=True)
class _Entry:
    tables: tuple[PageTable, ...]
    num_tokens: int = 0
    num_committed: int = 0


class SequencePages:
    """One page table per sequence and group, all of them changed together or not at all.

    A sequence is admitted with room for some tokens, extended before it gets more,
    and freed once. `commit` says that tokens were computed: only from then on may
    their pages be shared, since before that nothing stands in them.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._groups = pool.plan.groups
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: str) -> bool:
        return sequence in self._entries

    def tables(self, sequence: str) -> tuple[PageTable, ...]:
        """One page table per group of the plan."""
        return self._entries[sequence].tables

    def num_tokens(self, sequence: str) -> int:
        """Tokens that the sequence has room for."""
        return self._entries[sequence].num_tokens

    def num_committed(self, sequence: str) -> int:
        """Tokens whose cache has been written."""
        return self._entries[sequence].num_committed

    def can_admit(self, num_tokens: int) -> bool:
        """Whether `admit` of a new sequence of that many tokens would succeed."""
        return self._pool.can_allocate([group.pages_for(num_tokens) for group in self._groups])

    def admit(self, sequence: str, num_tokens: int) -> None:
        """Gives a new sequence room for `num_tokens`.

        Raises:
            ValueError: the sequence is there already.
            OutOfPages: there is no room; nothing was changed.
        """
        if sequence in self._entries:
            raise ValueError(f"sequence {sequence!r} is in the cache already")
        pages = self._pool.allocate([group.pages_for(num_tokens) for group in self._groups])
        tables = tuple(PageTable(group.blocks_per_page) for group in self._groups)
        for table, new in zip(tables, pages, strict=True):
            table.append(new)
        self._entries[sequence] = _Entry(tables, num_tokens)

    def can_extend(self, sequence: str, num_tokens: int) -> bool:
        """Whether `extend` by that many tokens would succeed."""
        return self._pool.can_allocate(self._missing(self._entries[sequence], num_tokens))

    def extend(self, sequence: str, num_tokens: int) -> None:
        """Gives a sequence room for `num_tokens` more.

        Raises:
            OutOfPages: there is no room; nothing was changed.
        """
        entry = self._entries[sequence]
        pages = self._pool.allocate(self._missing(entry, num_tokens))
        for table, new in zip(entry.tables, pages, strict=True):
            table.append(new)
        entry.num_tokens += num_tokens

    def commit(self, sequence: str, num_tokens: int) -> None:
        """Says that the first `num_tokens` tokens are in the cache now."""
        entry = self._entries[sequence]
        assert entry.num_committed <= num_tokens <= entry.num_tokens, (sequence, num_tokens, entry)
        entry.num_committed = num_tokens

    def free(self, sequence: str) -> None:
        """Gives back all pages of a sequence."""
        entry = self._entries.pop(sequence)
        for index, table in enumerate(entry.tables):
            self._pool.release(index, table.truncate(0))

    def _missing(self, entry: _Entry, num_tokens: int) -> Sequence[int]:
        return [
            group.pages_for(entry.num_tokens + num_tokens) - len(table)
            for group, table in zip(self._groups, entry.tables, strict=True)
        ]
