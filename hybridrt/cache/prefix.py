"""The prefix cache: takes in pages and states, finds them again, and drops what is worth least.

What nobody uses is dropped when its room is needed: first what no hit could use any more,
then checkpoints, the least worth first, and with each the pages that served it alone.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.plan import GroupPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.prefix_tree import (
    SUPERSEDED,
    USEFUL,
    Checkpoint,
    Finder,
    Match,
    Node,
)
from hybridrt.config import EngineConfig

MOST_GHOSTS = 65_536  # nodes remembered after their pages were dropped

_Windows = OrderedDict[tuple[int, PhysicalId], tuple[Node, int]]
"""Pages of windows that nobody sees now, by group and page: their nodes and groups' places."""

_PagesOfGroups = Sequence[tuple[PhysicalId | None, ...]]


class PrefixCache:
    """Finds, takes in and drops pages and checkpoints. It holds none itself: they are kept."""

    def __init__(self, pool: Pool, page_size: int, checkpoint_bytes: int | None = None) -> None:
        self._pool = pool
        self._keep = pool.allocator.keep
        self._checkpoint_bytes = checkpoint_bytes
        self.page_size = page_size
        groups = list(enumerate(pool.plan.groups))
        self.token_groups: list[tuple[int, GroupPlan]] = [x for x in groups if x[1].page_size]
        self.state_groups: list[tuple[int, GroupPlan]] = [x for x in groups if not x[1].page_size]
        self._has_windows = any(plan.window is not None for _, plan in self.token_groups)
        state_bytes = sum(plan.parts * plan.page_stride for _, plan in self.state_groups)
        self.most_checkpoints = (
            None if checkpoint_bytes is None or not state_bytes else checkpoint_bytes // state_bytes
        )
        self._roots: dict[str | None, Node] = {}
        plans = [plan for _, plan in self.token_groups]
        self._finder = Finder(self._roots, page_size, plans, bool(self.state_groups))
        self._clock = 0
        self._pushed = 0
        self._leaves: list[tuple[int, int, Node]] = []
        self._heap: list[tuple[int, int, int, Checkpoint]] = []
        self._behind: _Windows = OrderedDict()
        self._last: _Windows = OrderedDict()
        self._ghosts: OrderedDict[int, Node] = OrderedDict()
        self.num_nodes = 0
        self.num_checkpoints = 0
        self.num_dropped = {"pages": 0, "checkpoints": 0}

    def emptied(self) -> "PrefixCache":
        """One like it, for when all pages have been taken away."""
        return PrefixCache(self._pool, self.page_size, self._checkpoint_bytes)

    def match(self, tokens: Sequence[int], salt: str | None = None) -> Match:
        """The longest hit for a prompt, of at most all but its last token."""
        return self._finder.match(tokens, salt)

    def positions(self, tokens: Sequence[int], salt: str | None = None) -> list[int]:
        """All places where a prompt that begins with these tokens, and has more, could go on."""
        return self._finder.positions(tokens, salt)

    def root(self, salt: str | None) -> Node:
        """The node before the first token of all prompts with this salt."""
        if salt not in self._roots:
            self._roots[salt] = Node(None, b"", 0, (), salt)
        return self._roots[salt]

    def begin(self, match: Match | None, salt: str | None) -> Node:
        """Notes that a sequence goes on behind a match, or from the beginning."""
        self._clock += 1
        node = self.root(salt)
        if match is not None and match.position:
            node = match.path[-1]
            for seen in match.path:
                seen.time = self._clock
                if b"" in seen.checkpoints and len(seen.children) > 1:  # one branch of several
                    junction = seen.checkpoints[b""]
                    junction.time = self._clock
                    self._push(junction)
            if match.checkpoint is not None:
                match.checkpoint.time = self._clock
                match.checkpoint.rank = USEFUL
                match.checkpoint.num_pins += 1
        if match is not None:
            self._want_windows(match)
        node.users += 1
        return node

    def _want_windows(self, match: Match) -> None:
        """Marks what a hit here, or where this prompt parts from others, needs of windows."""
        for _, plan in self.token_groups if self._has_windows else ():
            for position in {match.position, match.matched} if plan.window is not None else ():
                first = plan.first_kept(position) // self.page_size
                for node in match.seen[first + 1 : position // self.page_size + 1]:
                    node.is_wanted = True

    def join(self, node: Node) -> None:
        """Notes that one sequence more goes on behind a node, with all its pages."""
        node.users += 1

    def end(self, node: Node) -> None:
        """Notes that a sequence goes on no longer."""
        node.users -= 1
        self._consider(node)
        self._forget_root(node)

    def follow(
        self, node: Node, tokens: bytes, pages: tuple[PhysicalId | None, ...]
    ) -> Node | None:
        """Takes a sequence on to the page of these tokens behind `node`, if there is one.

        `pages` has one for each token group, in use and not yet kept; those that are there
        already are kept and the others left to the sequence.
        """
        child = node.child(tokens)
        if child is None:
            return None
        if child.pages != pages or not child.is_resident:
            self._fill(child, pages)
        child.time = self._clock
        node.users -= 1
        child.users += 1
        return child

    def append(self, node: Node, tokens: bytes, pages: _PagesOfGroups) -> Node:
        """Takes in pages of tokens behind `node`, which has none like the first of them.

        `pages` has for each of them one for each token group, as in `follow`. Returns the node
        of the last.
        """
        size, salt, time = self.page_size, node.salt, self._clock
        chunk = len(tokens) // len(pages)
        node.users -= 1
        for at, own in zip(range(0, len(tokens), chunk), pages, strict=True):
            child = Node(node, tokens[at : at + chunk], node.length + size, own, salt)
            child.time = time
            node.add_child(child)
            node.num_resident += 1
            node = child
        node.users += 1
        self.num_nodes += len(pages)
        for (g, _), column in zip(self.token_groups, zip(*pages, strict=True), strict=False):
            self._keep(g, [page for page in column if page is not None])
        return node

    def _fill(self, node: Node, pages: tuple[PhysicalId | None, ...]) -> None:
        """Gives a node that was there the pages that it lacks."""
        self._ghosts.pop(id(node), None)
        held = list(node.pages)
        for slot, page in enumerate(pages):
            if page is not None and held[slot] is None:
                held[slot] = page
                self._keep(self.token_groups[slot][0], (page,))
        node.pages = tuple(held)
        if not node.is_resident:
            node.is_resident = True
            assert node.parent is not None
            node.parent.num_resident += 1

    def add_checkpoint(
        self,
        node: Node,
        tail: bytes,
        states: dict[int, list[PhysicalId]],
        partial: list[PhysicalId | None],
        rank: int = USEFUL,
    ) -> Checkpoint | None:
        """Takes in states behind `node` and `tail`. Their pages are in use and not yet kept.

        Returns None, and takes nothing, if there are such already, or no room is left for them.
        """
        there = node.checkpoints.get(tail)
        if there is not None:
            there.time, there.rank = self._clock, max(there.rank, rank)
            self._push(there)
            return None
        most = self.most_checkpoints
        if most is not None and self.num_checkpoints >= most and not self._drop_least_checkpoint():
            return None
        checkpoint = Checkpoint(node, tail, states, partial, rank, self._clock)
        for g, pages in self.pages_of(checkpoint):
            self._keep(g, pages)
        node.add_checkpoint(checkpoint)
        self.num_checkpoints += 1
        self._push(checkpoint)
        return checkpoint

    def unpin(self, checkpoint: Checkpoint) -> None:
        """Notes that a sequence has read the states that it goes on from, and let go of them."""
        checkpoint.num_pins -= 1
        self._push(checkpoint)
        for slot, page in enumerate(checkpoint.partial if self._has_windows else ()):
            for child in checkpoint.node.children:
                if page is not None and child.pages[slot] == page:
                    self.left_behind(child, slot, at_end=True)

    def supersede(self, checkpoint: Checkpoint) -> None:
        """Notes that a sequence went on from here and left a later one; only branches need both."""
        if len(checkpoint.node.children) < 2 and not checkpoint.is_dropped:
            checkpoint.rank = SUPERSEDED
            self._push(checkpoint)

    def left_behind(self, node: Node, slot: int, *, at_end: bool = False) -> None:
        """Notes that a sequence has no use any more for a window's page of a node.

        One that it held `at_end`, or that is wanted, is dropped when nothing else is left.
        """
        page = node.pages[slot]
        if page is not None:
            key = (self.token_groups[slot][0], page)
            if at_end or node.is_wanted:
                self._behind.pop(key, None)
                self._last[key] = (node, slot)
            elif key not in self._last:
                self._behind[key] = (node, slot)

    def data(self) -> dict[str, int]:
        """What is there now, and what was dropped so far."""
        return {
            "pages": self.num_nodes - len(self._ghosts),
            "checkpoints": self.num_checkpoints,
            "dropped_pages": self.num_dropped["pages"],
            "dropped_checkpoints": self.num_dropped["checkpoints"],
        }

    def make_room(self, counts: Sequence[int]) -> None:
        """Drops what is worth least until so many pages of each group are free.

        As much as there is: whether it is enough says `SlabAllocator.can_allocate`.
        """
        while self._pool.allocator.shortage(counts):
            if not self._drop_least():
                return

    def forget_all(self) -> None:
        """Drops all that nobody uses."""
        while self._drop_least():
            pass

    def _drop_least(self) -> bool:
        """Drops what is worth least. Returns whether there was anything."""
        return (
            self._drop_leaf(useless=True)
            or self._drop_window(self._behind)
            or self._drop_least_checkpoint()
            or self._drop_leaf(useless=False)
            or self._drop_window(self._last)
        )

    def _drop_leaf(self, useless: bool) -> bool:
        """Drops the pages of the leaf that was used least recently.

        With states a leaf behind which there is no checkpoint is useless.
        """
        if useless and not self.state_groups:
            return False
        while self._leaves:
            time, _, node = heapq.heappop(self._leaves)
            if not self._is_droppable(node):
                continue
            if time != node.time:
                self._consider(node)
                continue
            self._drop_pages(node)
            return True
        return False

    def _drop_window(self, queue: _Windows) -> bool:
        while queue:
            (g, page), (node, slot) = queue.popitem(last=False)
            if node.pages[slot] == page and self._pool.allocator.is_cached(g, page):
                node.set_page(slot, None)
                self._pool.drop(g, (page,))
                return True
        return False

    def _drop_least_checkpoint(self) -> bool:
        while self._heap:
            rank, time, _, checkpoint = heapq.heappop(self._heap)
            is_stale = (rank, time) != (checkpoint.rank, checkpoint.time)
            if checkpoint.is_dropped or checkpoint.num_pins or is_stale:
                continue  # one that is pinned comes back when it isn't
            self._drop_checkpoint(checkpoint)
            return True
        return False

    def _drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        checkpoint.is_dropped = True
        node = checkpoint.node
        del node.checkpoints[checkpoint.tail]
        node.lost_checkpoint = True
        self.num_checkpoints -= 1
        self.num_dropped["checkpoints"] += 1
        for g, pages in self.pages_of(checkpoint):
            self._pool.drop(g, pages)
        self._consider(node)
        self._forget_root(node)

    def pages_of(self, checkpoint: Checkpoint) -> Iterator[tuple[int, list[PhysicalId]]]:
        """All pages of a checkpoint, by group."""
        yield from checkpoint.states.items()
        if checkpoint.tail:
            for (g, _), page in zip(self.token_groups, checkpoint.partial, strict=True):
                if page is not None:
                    yield g, [page]

    def _drop_pages(self, node: Node) -> None:
        for slot, (g, _) in enumerate(self.token_groups):
            page = node.pages[slot]
            if page is not None:
                self._behind.pop((g, page), None)
                self._last.pop((g, page), None)
                self._pool.drop(g, (page,))
                node.set_page(slot, None)
        self.num_dropped["pages"] += 1
        node.is_resident = False
        parent = node.parent
        assert parent is not None
        parent.num_resident -= 1
        self._ghosts[id(node)] = node
        self._consider(parent)
        while len(self._ghosts) > MOST_GHOSTS:
            _, ghost = self._ghosts.popitem(last=False)
            assert ghost.parent is not None and not ghost.children, "its children went before it"
            ghost.parent.remove_child(ghost)
            self.num_nodes -= 1
            self._forget_root(ghost.parent)

    def _forget_root(self, node: Node) -> None:
        if node.parent is None and not (node.children or node.checkpoints or node.users):
            self._roots.pop(node.salt, None)

    def _is_droppable(self, node: Node) -> bool:
        """Whether no sequence and no hit further on goes through a node."""
        if not node.is_resident or node.parent is None:
            return False
        return not (node.users or node.num_resident or node.checkpoints)

    def _consider(self, node: Node) -> None:
        """Puts a node in line if its pages can be dropped."""
        if self._is_droppable(node):
            self._pushed += 1
            heapq.heappush(self._leaves, (node.time, self._pushed, node))
            if len(self._leaves) > 64 + 4 * self.num_nodes:  # most of it is stale
                latest = {id(entry[2]): entry for entry in sorted(self._leaves)}
                self._leaves = sorted(e for e in latest.values() if self._is_droppable(e[2]))

    def _push(self, checkpoint: Checkpoint) -> None:
        if checkpoint.num_pins or checkpoint.is_dropped:
            return
        self._pushed += 1
        entry = (checkpoint.rank, checkpoint.time, self._pushed, checkpoint)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 64 + 4 * self.num_checkpoints:  # most of it is stale
            entries = {id(e[3]): e for e in self._heap if e[:2] == (e[3].rank, e[3].time)}
            self._heap = sorted(e for e in entries.values() if not e[3].is_dropped)


def make_prefix_cache(pool: Pool, config: EngineConfig) -> PrefixCache | None:
    """The prefix cache of a pool; None: prefixes are not to be reused."""
    if not config.enable_prefix_caching or config.cache_policy == "contiguous":
        return None
    return PrefixCache(pool, config.page_size, config.checkpoint_memory)
