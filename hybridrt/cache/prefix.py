"""The prefix cache: takes in pages and states, finds them again, and drops what is worth least.

What nobody uses is dropped when its room is needed: first what no hit could use any more,
then checkpoints, the least worth first, and with each the pages that served it alone.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import cast

from hybridrt.cache.finder import Finder, Match
from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.place import Place
from hybridrt.cache.plan import GroupPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.prefix_tree import (
    SUPERSEDED,
    TOKEN_BYTES,
    USEFUL,
    Checkpoint,
    Column,
    Node,
    PagesOfGroups,
)
from hybridrt.cache.window_pages import WindowPages
from hybridrt.config import EngineConfig

MOST_GHOSTS = 65_536  # pages whose tokens are remembered after their pages were dropped


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
        self.windows = WindowPages(pool, self.token_groups, page_size)
        state_bytes = sum(plan.parts * plan.page_stride for _, plan in self.state_groups)
        self.most_checkpoints = (
            None if checkpoint_bytes is None or not state_bytes else checkpoint_bytes // state_bytes
        )
        self._roots: dict[str | None, Node] = {}
        self.unfold: Callable[[Place], None]
        """Takes a folded sequence into the tree; from `Reuse`, which does so with all others."""
        self.can_fold = bool(self.state_groups) and not self.windows
        self._finder = Finder(
            self._roots, page_size, self.token_groups, bool(self.state_groups), self._unfold
        )
        self._clock = 0
        self._pushed = 0
        self._leaves: list[tuple[int, int, Node]] = []
        self._lines: tuple[OrderedDict[Checkpoint, None], ...] = (OrderedDict(), OrderedDict())
        self._ghosts: OrderedDict[int, Node | Place] = OrderedDict()
        self._num_ghosts = 0
        self.num_nodes = 0
        self.num_pages = 0
        self.num_checkpoints = 0
        self.num_dropped = {"pages": 0, "checkpoints": 0}

    def emptied(self) -> "PrefixCache":
        """One like it, for when all pages have been taken away."""
        return PrefixCache(self._pool, self.page_size, self._checkpoint_bytes)

    def match(self, data: bytes, salt: str | None = None) -> Match:
        """The longest hit for a prompt as `token_bytes`, of at most all but its last token."""
        return self._finder.match(data, salt)

    def positions(self, tokens: Sequence[int], salt: str | None = None) -> list[int]:
        """All places where a prompt that begins with these tokens, and has more, could go on."""
        return self._finder.positions(tokens, salt)

    def checkpoints(self, tokens: Sequence[int], salt: str | None = None) -> list[Checkpoint]:
        """All copies of states behind these tokens' prefixes, the longest first."""
        return self._finder.checkpoints(tokens, salt)

    def root(self, salt: str | None) -> Node:
        """The node before the first token of all prompts with this salt."""
        if salt not in self._roots:
            self._roots[salt] = Node(None, b"", 0, 0, [], salt)
        return self._roots[salt]

    def begin(self, match: Match | None, salt: str | None) -> Node:
        """Notes that a sequence goes on behind a match, or from the beginning."""
        self._clock += 1
        node = self.root(salt)
        if match is not None and self.windows:
            self.windows.want(match)
        if match is not None and match.position:
            node = self._node_of(match)
            for seen in node.to_root():
                seen.time = self._clock
                if b"" in seen.checkpoints and seen.num_branchings > 1:
                    self._touch(seen.checkpoints[b""])
            if match.checkpoint is not None:
                self._touch(match.checkpoint, USEFUL)
                match.checkpoint.num_pins += 1
        node.users += 1
        return node

    def _node_of(self, match: Match) -> Node:
        """The node at whose end a hit's last full page is."""
        if match.checkpoint is not None:
            return match.checkpoint.node
        return self.node_before(match.node, match.position // self.page_size)

    def node_before(self, node: Node, page: int) -> Node:
        """The node that ends where the page of that number begins, on the way to `node`.

        Where that is further on, `node` itself.
        """
        if page >= node.end:
            return node
        while node.first >= page and node.parent is not None:
            node = node.parent
        return self._cut(node, page)

    def _cut(self, node: Node, page: int) -> Node:
        """The node that ends where that page begins, which this one has or ends at."""
        if page == node.end:
            return node
        self.num_nodes += 1
        return node.split(page - node.first, self.page_size * TOKEN_BYTES)

    def join(self, node: Node) -> None:
        """Notes that one sequence more goes on behind a node, with all its pages."""
        node.users += 1

    def end(self, node: Node) -> None:
        """Notes that a sequence goes on no longer."""
        node.users -= 1
        self._consider(node)
        self._forget_root(node)

    def follow(self, node: Node, tokens: bytes, columns: Sequence[Column]) -> Node | None:
        """Takes a sequence on behind `node`, as far as one of the next has the same tokens.

        `columns` have its own pages, in use and not yet kept: those that are there already are
        left to it, the others kept. None: there is no node like this.
        """
        chunk = self.page_size * TOKEN_BYTES
        child = node.children.get(tokens[:chunk])
        if child is None:
            return None
        count = child.num_common(tokens, 0, len(tokens) // chunk, chunk)
        self._fill(child, count, columns)
        child = self._cut(child, child.first + count)
        child.time = self._clock
        node.users -= 1
        child.users += 1
        return child

    def append(self, node: Node, tokens: bytes, columns: list[Column]) -> Node:
        """Takes in pages of tokens behind `node`, which has none that begins like them.

        `columns` has them for each token group, in use and not yet kept. Returns the node at
        whose end they are: the same, made longer, where only this sequence stands there.
        """
        chunk = self.page_size * TOKEN_BYTES
        count = len(tokens) // chunk
        for (g, plan), column in zip(self.token_groups, columns, strict=True):
            self._keep(g, _there(plan, column))
        self.num_pages += count
        if node.users == 1 and node.parent is not None and _is_bare(node):
            node.tokens += tokens
            node.end += count
            node.length += count * self.page_size
            node.num_cached += count
            for own, column in zip(node.columns, columns, strict=True):
                own += column
            node.time = self._clock
            return node
        length = node.length + count * self.page_size
        child = Node(node, tokens, node.end + count, length, columns, node.salt)
        child.time = self._clock
        node.add_child(tokens[:chunk], child)
        node.num_cached_children += 1
        self.num_nodes += 1
        node.users -= 1
        child.users += 1
        return child

    def _fill(self, node: Node, count: int, columns: Sequence[Column]) -> None:
        """Gives the first `count` pages of a node that was there those that they lack."""
        there = node.num_cached
        for (g, plan), own, column in zip(self.token_groups, node.columns, columns, strict=True):
            new = column[there:count]
            if plan.window is not None:
                for index, page in enumerate(column[: min(there, count)]):
                    if own[index] is None and page is not None:
                        own[index] = page
                        self._keep(g, (page,))
            own += new
            self._keep(g, _there(plan, new))
        if count <= there:
            return
        node.num_cached = count
        self.num_pages += count - there
        self._num_ghosts -= count - there
        if not there:
            assert node.parent is not None
            node.parent.num_cached_children += 1
        if node.is_whole:
            del self._ghosts[id(node)]

    def add_checkpoint(
        self,
        node: Node,
        tail: bytes,
        pages: PagesOfGroups,
        rank: int = USEFUL,
    ) -> Checkpoint | None:
        """Takes in states behind `node` and `tail`. Their pages are in use and not yet kept.

        Returns None, and takes nothing, if there are such already, or no room is left for them.
        """
        there = node.checkpoints.get(tail)
        if there is not None:
            self._touch(there, rank)
            return None
        position = node.length + len(tail) // TOKEN_BYTES
        checkpoint = self._take_in(Checkpoint(node, tail, position, pages, rank))
        if checkpoint is not None:
            node.add_checkpoint(checkpoint)
        return checkpoint

    def _take_in(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Keeps the states of a checkpoint, if there may be one more, or another goes for it."""
        most = self.most_checkpoints
        if most is not None and self.num_checkpoints >= most and not self._drop_least_checkpoint():
            return None
        for g, own in checkpoint.pages.items():
            self._keep(g, own)
        self.num_checkpoints += 1
        self._lines[checkpoint.rank][checkpoint] = None
        return checkpoint

    def add_folded(self, place: Place, position: int, pages: PagesOfGroups, rank: int) -> bool:
        """Takes in states of a folded place, as `add_checkpoint`. Whether there was room."""
        checkpoint = Checkpoint(place.node, b"", position, pages, rank, place=place)
        if self._take_in(checkpoint) is None:
            return False
        place.earlier.append(checkpoint)
        return True

    def attach(
        self, checkpoint: Checkpoint, node: Node, tail: bytes, partial: PagesOfGroups
    ) -> None:
        """Puts a checkpoint that was folded into the tree, with the pages that its tail needs."""
        there = node.checkpoints.get(tail)
        if there is not None:
            self._touch(there, checkpoint.rank)
            self._forget(checkpoint)
            return
        for g, own in partial.items():
            self._keep(g, own)
        checkpoint.node, checkpoint.tail, checkpoint.place = node, tail, None
        checkpoint.pages = {**checkpoint.pages, **partial}
        node.add_checkpoint(checkpoint)

    def lay_by(self, place: Place, pages: PagesOfGroups) -> None:
        """Takes in what a folded sequence that ends has: pages in use and not yet kept."""
        for g, own in pages.items():
            self._keep(g, own)
        place.pages, place.tables = pages, ()
        self.num_pages += place.num_pages(self.page_size)

    def take_up(self, place: Place) -> None:
        """Keeps the pages no longer that a place was laid by with."""
        pages, place.pages = place.pages or {}, None
        for g, own in pages.items():
            self._pool.drop(g, own)
        self.num_pages -= place.num_pages(self.page_size)

    def remember(self, place: Place) -> None:
        """Puts the tokens of pages that were dropped while they were folded into the tree."""
        node, chunk = place.node, self.page_size * TOKEN_BYTES
        count = place.num_pages(self.page_size)
        end = node.end + count
        tokens = place.token_bytes((), node.length, end * self.page_size)
        del self._ghosts[id(place)]
        if tokens[:chunk] in node.children:
            self._num_ghosts -= count
            return
        columns: list[Column] = [[] for _ in self.token_groups]
        child = Node(node, tokens, end, end * self.page_size, columns, node.salt)
        child.num_cached = 0
        node.add_child(tokens[:chunk], child)
        self.num_nodes += 1
        self._ghosts[id(child)] = child
        for parent in node.to_root():  # is forgotten after its children
            if id(parent) in self._ghosts:
                self._ghosts.move_to_end(id(parent))

    def unpin(self, checkpoint: Checkpoint) -> None:
        """Notes that a sequence has read the states that it goes on from, and let go of them."""
        checkpoint.num_pins -= 1
        if self.windows:
            self.windows.leave_copied(checkpoint)

    def supersede(self, checkpoint: Checkpoint) -> None:
        """Notes that a sequence went on from here and left a later one; only branches need both."""
        is_alone = checkpoint.place is not None or checkpoint.node.num_branchings < 2
        if is_alone and not checkpoint.is_dropped:
            del self._lines[checkpoint.rank][checkpoint]
            checkpoint.rank = SUPERSEDED
            self._lines[SUPERSEDED][checkpoint] = None

    def _touch(self, checkpoint: Checkpoint, rank: int = SUPERSEDED) -> None:
        """Puts a checkpoint that is of use again at the end of its line, or of a better one."""
        if rank > checkpoint.rank:
            del self._lines[checkpoint.rank][checkpoint]
            checkpoint.rank = rank
            self._lines[rank][checkpoint] = None
        else:
            self._lines[checkpoint.rank].move_to_end(checkpoint)

    def data(self) -> dict[str, int]:
        """What is there now, and what was dropped so far."""
        return {
            "pages": self.num_pages,
            "checkpoints": self.num_checkpoints,
            "dropped_pages": self.num_dropped["pages"],
            "dropped_checkpoints": self.num_dropped["checkpoints"],
        }

    def allocate(self, counts: Sequence[int]) -> list[list[PhysicalId]] | None:
        """Drops what is worth least until so many pages of each group are free, and takes them.

        None: they aren't, with nothing left to drop. `Pool.can_allocate` says so before.
        """
        most, try_allocate = max(counts), self._pool.try_allocate
        while self._drop_least(most):
            pages = try_allocate(counts)
            if pages is not None:
                return pages
        return None

    def forget_all(self) -> None:
        """Drops all that nobody uses."""
        while self._drop_least(self.num_pages):
            pass

    def _drop_least(self, most: int) -> bool:
        """Drops what is worth least, at most so many pages of it. Whether there was anything."""
        return (
            (bool(self._leaves and self.state_groups) and self._drop_leaf(most))
            or self.windows.drop_one(self.windows.behind)
            or self._drop_least_checkpoint()
            or self._drop_leaf(most)
            or self.windows.drop_one(self.windows.last)
        )

    def _drop_leaf(self, most: int) -> bool:
        """Drops up to so many last pages of the leaf that was used least recently.

        With states there is no checkpoint behind it, so that all of it is useless.
        """
        while self._leaves:
            time, _, node = self._leaves[0]
            if self._is_droppable(node) and time == node.time:
                if self.state_groups:
                    self._drop_useless(node)
                else:
                    self._drop_pages(node, min(most, node.num_cached))
                return True
            heapq.heappop(self._leaves)
            self._consider(node)
        return False

    def _drop_least_checkpoint(self) -> bool:
        for line in self._lines:
            for checkpoint in line:
                if not checkpoint.num_pins:
                    self._drop_checkpoint(checkpoint)
                    return True
        return False

    def _drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._forget(checkpoint)
        self.num_dropped["checkpoints"] += 1
        node, place = checkpoint.node, checkpoint.place
        if place is None:
            del node.checkpoints[checkpoint.tail]
            node.lost_checkpoint = True
            self._drop_useless(node)
        elif place.pages is not None:
            left = [one for one in place.folded if not one.is_dropped]
            if not left:
                self._drop_branch(place)
            elif left[-1].position < checkpoint.position:  # what is between is useless
                self._unfold(place)

    def _forget(self, checkpoint: Checkpoint) -> None:
        checkpoint.is_dropped = True
        del self._lines[checkpoint.rank][checkpoint]
        self.num_checkpoints -= 1
        for g, pages in checkpoint.pages.items():
            self._pool.drop(g, pages)

    def _unfold(self, place: Place) -> None:
        self.unfold(place)

    def _drop_branch(self, place: Place) -> None:
        """Drops the pages of a sequence that ended and is folded, and keeps its tokens in mind."""
        self.take_up(place)
        node, count = place.node, place.num_pages(self.page_size)
        node.users -= 1
        place.earlier.clear()
        self.num_dropped["pages"] += count
        if count:
            self._ghosts[id(place)] = place
            self._num_ghosts += count
        else:
            del node.branches[place.key]
        self._drop_useless(node)
        self._forget_ghosts()

    def _drop_useless(self, node: Node) -> None:
        """Drops the pages that lead to no checkpoint any more: those of a leaf, and before it."""
        while node.parent is not None and self._is_droppable(node):
            self._drop_pages(node, node.num_cached)
            node = node.parent
        self._forget_root(node)

    def _drop_pages(self, node: Node, count: int) -> None:
        """Drops the last `count` pages of a node, and keeps their tokens in mind for a while."""
        was_whole, left = node.is_whole, node.num_cached - count
        for (g, plan), column in zip(self.token_groups, node.columns, strict=True):
            dropped = _there(plan, column[left:])
            del column[left:]
            if plan.window is not None:
                self.windows.forget(g, dropped)
            self._pool.drop(g, dropped)
        node.num_cached = left
        self.num_pages -= count
        self.num_dropped["pages"] += count
        self._num_ghosts += count
        if was_whole:
            self._ghosts[id(node)] = node
        if not left:
            assert node.parent is not None
            node.parent.num_cached_children -= 1
            if not self.state_groups:
                self._consider(node.parent)
        self._forget_ghosts()

    def _forget_ghosts(self) -> None:
        while self._num_ghosts > MOST_GHOSTS:
            self._forget_ghost()

    def _forget_ghost(self) -> None:
        """Forgets the pages that were dropped of the node where that began first."""
        _, node = self._ghosts.popitem(last=False)
        if isinstance(node, Place):
            self._num_ghosts -= node.num_pages(self.page_size)
            del node.node.branches[node.key]
            self._forget_root(node.node)
            return
        parent, chunk = node.parent, self.page_size * TOKEN_BYTES
        assert parent is not None and not node.num_branchings, "its children went before it"
        self._num_ghosts -= node.end - node.first - node.num_cached
        if not node.num_cached:
            del parent.children[node.tokens[:chunk]]
            self.num_nodes -= 1
            self._forget_root(parent)
            return
        node.tokens = node.tokens[: node.num_cached * chunk]
        node.end = node.first + node.num_cached
        node.length = node.end * self.page_size

    def _forget_root(self, node: Node) -> None:
        if node.parent is None and not (node.num_branchings or node.checkpoints or node.users):
            self._roots.pop(node.salt, None)

    def _is_droppable(self, node: Node) -> bool:
        """Whether no sequence and no hit further on goes through a node."""
        if not node.num_cached or node.parent is None:
            return False
        return not (node.users or node.num_cached_children or node.checkpoints)

    def _consider(self, node: Node) -> None:
        """Puts a node in line if its pages can be dropped."""
        if self._is_droppable(node):
            self._pushed += 1
            heapq.heappush(self._leaves, (node.time, self._pushed, node))
            if len(self._leaves) > 64 + 4 * self.num_nodes:  # most of it is stale
                latest = {id(entry[2]): entry for entry in sorted(self._leaves)}
                self._leaves = sorted(e for e in latest.values() if self._is_droppable(e[2]))


def _there(plan: GroupPlan, column: Column) -> list[PhysicalId]:
    """The pages of a column that are there: without a window, all."""
    if plan.window is None:
        return cast(list[PhysicalId], column)
    return [page for page in column if page is not None]


def _is_bare(node: Node) -> bool:
    """Whether nothing else can go on at a node's end, so that it may be moved."""
    return not (node.num_branchings or node.checkpoints or node.lost_checkpoint)


def make_prefix_cache(pool: Pool, config: EngineConfig) -> PrefixCache | None:
    """The prefix cache of a pool; None: prefixes are not to be reused."""
    if not config.enable_prefix_caching or config.cache_policy == "contiguous":
        return None
    return PrefixCache(pool, config.page_size, config.checkpoint_memory)
