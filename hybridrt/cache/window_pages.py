"""Pages of windows that nobody sees any more: in which order they go.

A sequence leaves pages behind as its window moves on. Most are of no use to anyone: a hit needs
those just before its position, and few positions are ever asked for.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from hybridrt.cache.finder import Match
from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.plan import GroupPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.prefix_tree import Checkpoint, Node

_Line = OrderedDict[tuple[int, PhysicalId], tuple[Node, int, int]]
"""Pages by group and id. Where they are: in a node or one before it, the group's place there, and
the page's number."""


class WindowPages:
    """What sequences left behind, and those pages that hits have asked for.

    `behind` are pages that go early, `last` those that go when nothing else is left: a sequence
    held them when it ended, or they lie in the window before a place where prompts part.
    """

    def __init__(
        self, pool: Pool, token_groups: Sequence[tuple[int, GroupPlan]], page_size: int
    ) -> None:
        self._pool = pool
        self._page_size = page_size
        self._slots = [
            (slot, g, plan)
            for slot, (g, plan) in enumerate(token_groups)
            if plan.window is not None
        ]
        self._groups = [g for g, _ in token_groups]
        self.behind: _Line = OrderedDict()
        self.last: _Line = OrderedDict()

    def __bool__(self) -> bool:
        """Whether there are any windows."""
        return bool(self._slots)

    def want(self, match: Match) -> None:
        """Marks what a hit here, or where this prompt parts from others, needs of windows."""
        for _, _, plan in self._slots:
            for position in {match.position, match.matched}:
                first = plan.first_kept(position) // self._page_size
                pages = range(first, position // self._page_size)
                for node in match.node.to_root():
                    if node.end <= pages.start:
                        break
                    if node.first < pages.stop:
                        node.want(pages)

    def leave(self, node: Node, slot: int, number: int, *, at_end: bool = False) -> None:
        """Notes that a sequence has no use any more for a window's page of a node.

        One that it held `at_end`, or that is wanted, is dropped when nothing else is left.
        """
        page = node.page(slot, number)
        if page is not None:
            key = (self._groups[slot], page)
            if at_end or number in node.wanted:
                self.behind.pop(key, None)
                self.last[key] = (node, slot, number)
            elif key not in self.last:
                self.behind[key] = (node, slot, number)

    def leave_copied(self, checkpoint: Checkpoint) -> None:
        """Notes that nobody copies from the page any more that a checkpoint has a part of."""
        number = checkpoint.node.end
        for slot, g, _ in self._slots:
            if g not in checkpoint.pages:
                continue
            for child in checkpoint.node.children.values():
                if child.page(slot, number) == checkpoint.pages[g][0]:
                    self.leave(child, slot, number, at_end=True)

    def drop_one(self, line: _Line) -> bool:
        """Drops the first page of a line. Whether there was one."""
        while line:
            (g, page), (last, slot, number) = line.popitem(last=False)
            node = last.holder(number)
            if node.page(slot, number) == page and self._pool.allocator.is_cached(g, page):
                node.columns[slot][number - node.first] = None
                self._pool.drop(g, (page,))
                return True
        return False

    def forget(self, g: int, pages: Iterable[PhysicalId]) -> None:
        """Takes pages that are dropped out of the lines."""
        for page in pages:
            self.behind.pop((g, page), None)
            self.last.pop((g, page), None)
