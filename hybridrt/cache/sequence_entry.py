"""One sequence's pages, and how many more it needs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridrt.cache.page_table import PageTable, PhysicalId
from hybridrt.cache.place import Place
from hybridrt.cache.plan import UNENDING, GroupPlan
from hybridrt.cache.prefix_tree import PagesOfGroups


@dataclass(slots=True)
class Entry:
    """A page table per group, and what is known of them.

    `capacity` tokens can be written now; at `next_release` a window leaves a page behind. `place`
    is where the sequence stands in the prefix cache, if it shares at all. Before `next_event`
    tokens are committed there is nothing to do but to count them. `taps` are the pages in which
    the next step leaves the states at some positions, for who asked to see them.
    """

    tables: tuple[PageTable, ...]
    capacity: int = 0
    num_committed: int = 0
    next_release: int = UNENDING
    next_event: int = 0
    place: Place | None = None
    taps: dict[int, PagesOfGroups] = field(default_factory=dict)

    def measure(self, groups: Sequence[GroupPlan]) -> None:
        """Notes how far the pages reach, so that nobody has to count them at every token."""
        capacity, release = UNENDING, UNENDING
        for group, table in zip(groups, self.tables, strict=True):
            if group.page_size is None:
                capacity = capacity if len(table) == group.parts else 0
                continue
            capacity = min(capacity, (table.num_released + len(table)) * group.page_size)
            if group.window is not None:
                last_of_first = (table.num_released + 1) * group.page_size - 1
                release = min(release, group.window.unseen_from(last_of_first))
        self.capacity, self.next_release = capacity, release

    def pages_to_fork(
        self, groups: Sequence[GroupPlan]
    ) -> tuple[list[Sequence[PhysicalId]], list[Sequence[PhysicalId]]]:
        """In each group, the pages that a child can share and those that it needs copies of."""
        shared: list[Sequence[PhysicalId]] = []
        copied: list[Sequence[PhysicalId]] = []
        for group, table in zip(groups, self.tables, strict=True):
            full, held = _committed_pages(group, table, self.num_committed)
            shared.append(table.physical_ids[:full])
            copied.append(table.physical_ids[full:held])
        return shared, copied


def missing_pages(
    groups: Sequence[GroupPlan], entry: Entry | None, num_tokens: int, stop: int | None
) -> list[int]:
    """Pages of each group that a sequence, new if None, doesn't have yet for so many tokens.

    In groups with a window for `stop` of them; None: for all.
    """
    counts: list[int] = []
    for g, group in enumerate(groups):
        end = num_tokens if stop is None or group.window is None else stop
        count = group.pages_for(end)
        if entry is not None:
            table = entry.tables[g]
            count -= table.num_released + len(table)
        counts.append(max(0, count))
    return counts


def _committed_pages(group: GroupPlan, table: PageTable, num_tokens: int) -> tuple[int, int]:
    """Of a table's pages, how many are full, and how many hold something."""
    if group.page_size is None:
        return 0, len(table) if num_tokens else 0
    held = group.pages_for(num_tokens) - table.num_released
    return num_tokens // group.page_size - table.num_released, held
