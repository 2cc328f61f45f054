"""A cache that holds exactly the bytes that it keeps, for `yardstick.py`.

It has no slabs and no pages. Of tokens it keeps blocks of 16, so that their tree is known
beforehand; of windows what the kept positions see; states at chosen positions.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Int64
from traces import TraceRequest

from hybridrt.cache.plan import CachePlan
from hybridrt.cache.spec import Window

BLOCK = 16  # tokens
NEVER = 1 << 30

Nodes = Int64[np.ndarray, " blocks"]


@dataclass(frozen=True)
class Sizes:
    """Bytes of a sequence's cache: of a token, of a token in each kind of window, of states."""

    token: int
    windows: Mapping[Window, int]
    state: int

    @classmethod
    def of(cls, plan: CachePlan) -> "Sizes":
        """Those of the layers of a plan."""
        windows: dict[Window, int] = {}
        for layer in plan.layers:
            if layer.window is not None:
                windows[layer.window] = windows.get(layer.window, 0) + layer.bytes_per_token
        return cls(plan.bytes_per_token, windows, plan.bytes_per_sequence)

    def without_windows(self) -> "Sizes":
        """Those of a cache that keeps in windows too what is seen no more."""
        return replace(self, token=self.token + sum(self.windows.values()), windows={})


class Paths:
    """The tree of all blocks of a trace. Block 0 stands before the first token.

    `nodes[i]` are the blocks of request i, its output included; `passing[b]` the requests
    whose prompt has the tokens up to block b and at least one more.
    """

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        children: dict[tuple[int, bytes], int] = {}
        self.tokens = [np.concatenate([r.prompt, r.output]) for r in requests]
        self.lengths = [len(request.prompt) for request in requests]
        self.nodes: list[Nodes] = []
        self.passing: list[list[int]] = [[]]
        self.num_children = [0]  # of those that a request has shown so far
        for index, tokens in enumerate(self.tokens):
            node, path = 0, [0]
            for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
                key = node, tokens[start : start + BLOCK].tobytes()
                if key not in children:
                    children[key] = len(self.passing)
                    self.passing.append([])
                    self.num_children.append(0)
                node = children[key]
                path.append(node)
            self.nodes.append(np.array(path))
            for node in path[: (self.lengths[index] - 1) // BLOCK + 1]:
                self.passing[node].append(index)


@dataclass(eq=False)
class Kept:
    """A position that a prompt can start from, on the way of request `request`."""

    request: int
    position: int
    node: int
    time: int
    first: int
    uses: int = 1
    credit: float = 0.0


@dataclass
class Cache:
    """What is kept, and the bytes of it. `refs` count who needs a block, `views` in a window."""

    paths: Paths
    sizes: Sizes
    capacity: int
    used: int = 0
    now: int = 0
    credit: float = 0.0
    kept: dict[tuple[int, int, bytes], Kept] = field(default_factory=dict)
    by_node: dict[int, list[Kept]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.paths.passing)
        self.refs = np.zeros(count, np.int64)
        self.views = {window: np.zeros(count, np.int64) for window in self.sizes.windows}
        self.serving = [0] * len(self.paths.lengths)  # the position that each request would get

    def __contains__(self, kept: Kept) -> bool:
        return kept in self.by_node.get(kept.node, ())

    def hold(self, request: int, position: int, sign: int = 1) -> None:
        """Counts the bytes needed to go on at a position, or no longer with a sign of -1."""
        path, full = self.paths.nodes[request], position // BLOCK
        self._count(self.refs, path[1 : full + 1], self.sizes.token, sign)
        rest = position % BLOCK * self.sizes.token
        for window, size in self.sizes.windows.items():
            first = window.first_visible(position) // BLOCK
            self._count(self.views[window], path[1 + first : full + 1], size, sign)
            rest += position % BLOCK * size
        self.used += sign * (rest + self.sizes.state)

    def _count(self, counts: Nodes, blocks: Nodes, size: int, sign: int) -> None:
        edge = 0 if sign > 0 else 1  # those that come in, or go out
        self.used += sign * BLOCK * size * int((counts[blocks] == edge).sum())
        counts[blocks] += sign

    def find(self, request: int, limit: int) -> tuple[int, Kept | None]:
        """The best position for a prompt, and what is kept exactly there."""
        if not self.sizes.state:
            position = self._resident(request, limit)
            return position, self.kept.get(self._key(request, position))
        path = self.paths.nodes[request][: limit // BLOCK + 1]
        for node in reversed(path.tolist()):
            for kept in sorted(self.by_node.get(node, ()), key=lambda k: -k.position):
                if kept.position <= limit and self._is_prefix(kept, request):
                    return kept.position, kept
        return 0, None

    def touch(self, request: int, position: int) -> None:
        """Notes that a request goes on from a position, and that all before it is of use."""
        for node in self.paths.nodes[request][: position // BLOCK + 1].tolist():
            for kept in self.by_node.get(node, ()):
                if kept.position <= position and self._is_prefix(kept, request):
                    kept.time = self.now

    def _resident(self, request: int, limit: int) -> int:
        path = self.paths.nodes[request][1 : limit // BLOCK + 1]
        gone = np.flatnonzero(self.refs[path] == 0)
        blocks = int(gone[0]) if len(gone) else len(path)
        while blocks:
            for window, views in self.views.items():
                first = window.first_visible(blocks * BLOCK) // BLOCK
                unseen = np.flatnonzero(views[path[first:blocks]] == 0)
                if len(unseen):
                    blocks = first + int(unseen[-1])
                    break
            else:
                break
        return blocks * BLOCK

    def _is_prefix(self, kept: Kept, request: int) -> bool:
        start, stop = kept.position // BLOCK * BLOCK, kept.position
        a, b = (self.paths.tokens[r][start:stop] for r in (kept.request, request))
        return np.array_equal(a, b)

    def _key(self, request: int, position: int) -> tuple[int, int, bytes]:
        start = position // BLOCK
        tail = self.paths.tokens[request][start * BLOCK : position].tobytes()
        return int(self.paths.nodes[request][start]), position, tail

    def add(self, request: int, position: int, since: Kept | None = None) -> None:
        """Keeps a position; `since` is what the request went on from."""
        if not self.sizes.state:
            position -= position % BLOCK
        key = self._key(request, position)
        if not position or key in self.kept:
            return
        new = Kept(request, position, key[0], self.now, self.now, credit=self.credit)
        if since is not None:
            new.first, new.uses = since.first, since.uses + 1
        self._add(new)

    def _add(self, new: Kept) -> None:
        key = self._key(new.request, new.position)
        if key in self.kept:
            return
        self.hold(new.request, new.position)
        self.kept[key] = new
        self.by_node.setdefault(new.node, []).append(new)
        for other in self._coming(new):
            self.serving[other] = max(self.serving[other], new.position)

    def remove(self, kept: Kept) -> None:
        """Keeps a position no longer."""
        del self.kept[self._key(kept.request, kept.position)]
        self.by_node[kept.node].remove(kept)
        self.hold(kept.request, kept.position, -1)
        for other in self._coming(kept):
            if self.serving[other] == kept.position:
                self.serving[other] = self.find(other, self.paths.lengths[other] - 1)[0]

    def shorten(self, kept: Kept) -> None:
        """Lets go of as many of the last blocks as are too much, or of all of them.

        Of all if states are kept, or if a window before the new end isn't there any more.
        """
        per_block = BLOCK * (self.sizes.token + sum(self.sizes.windows.values()))
        blocks = -(-(self.used - self.capacity) // per_block)
        path = self.paths.nodes[kept.request][1 : kept.position // BLOCK + 1]
        own, end = int((self.refs[path] == 1).sum()), len(path) - blocks
        whole = bool(self.sizes.state) or blocks >= own
        for window, views in self.views.items():
            first = window.first_visible(end * BLOCK) // BLOCK
            whole = whole or not bool(views[path[first:end]].all())
        if not whole:
            self._add(replace(kept, position=end * BLOCK, node=int(path[end - 1])))
        self.remove(kept)

    def _coming(self, kept: Kept) -> Iterator[int]:
        passing = self.paths.passing[kept.node]
        for other in passing[bisect_right(passing, self.now) :]:
            if kept.position < self.paths.lengths[other] and self._is_prefix(kept, other):
                yield other

    def next_use(self, kept: Kept) -> int:
        """The next request for which nothing better is kept."""
        position = kept.position
        return next((r for r in self._coming(kept) if self.serving[r] <= position), NEVER)

    def saved(self, kept: Kept) -> int:
        """Tokens that have to be computed without it: back to what is kept before."""
        path = self.paths.nodes[kept.request][: kept.position // BLOCK + 1]
        if not self.sizes.state:
            return max(1, int((self.refs[path[1:]] == 1).sum()) * BLOCK)
        for node in reversed(path.tolist()):
            for other in self.by_node.get(node, ()):
                if other.position < kept.position and self._is_prefix(other, kept.request):
                    return kept.position - other.position
        return kept.position

    def freed(self, kept: Kept) -> int:
        """Bytes that would be free without it."""
        before = self.used
        self.hold(kept.request, kept.position, -1)
        freed = before - self.used
        self.hold(kept.request, kept.position)
        return max(1, freed)
