"""The tree of prefixes: pages of tokens, and the positions at which states are kept.

A node stands for one full page of tokens behind those of its parent, and is found by its
tokens themselves, so that nothing but equal tokens is ever taken for equal. Each
`cache_salt` has a root of its own. A node has its page in every token group; a checkpoint
hangs on the node behind which it stands, up to a page's tokens further on, and has a copy
of every state.
"""

from array import array
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.plan import GroupPlan

CacheNote = Literal[
    "hit",
    "no match",
    "below page size",
    "no checkpoint",
    "window gone",
    "evicted",
    "salt differs",
    "disabled",
]
"""How a prompt fared; see docs/reuse.md."""

TOKEN_BYTES = 4
SUPERSEDED, USEFUL = 0, 1  # ranks of checkpoints


_NONE: dict[bytes, Any] = {}
"""One for all nodes that have none, never changed: memory, and time of the collector."""


class Node:
    """A page of tokens; `length` counts all up to its end. The root has none.

    `pages` has one per token group, None where it was dropped. `users` are the running
    sequences that go on behind it. One that `is_wanted` lies in the window before a place
    where prompts part, so that its pages are worth keeping behind a window too.
    """

    __slots__ = (
        "_children",
        "_only_child",
        "checkpoints",
        "is_resident",
        "is_wanted",
        "length",
        "lost_checkpoint",
        "num_resident",
        "pages",
        "parent",
        "salt",
        "time",
        "tokens",
        "users",
    )

    def __init__(
        self,
        parent: "Node | None",
        tokens: bytes,
        length: int,
        pages: tuple[PhysicalId | None, ...],
        salt: str | None,
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.length = length
        self.pages = pages
        self.salt = salt
        self._only_child: Node | None = None
        self._children: dict[bytes, Node] = _NONE  # of a node that has had several
        self.checkpoints: dict[bytes, Checkpoint] = _NONE
        self.num_resident = 0  # children that have their pages
        self.users = 0
        self.time = 0
        self.is_resident = True
        self.is_wanted = False
        self.lost_checkpoint = False

    def add_checkpoint(self, checkpoint: "Checkpoint") -> None:
        """Hangs a checkpoint on this node."""
        if self.checkpoints is _NONE:
            self.checkpoints = {}
        self.checkpoints[checkpoint.tail] = checkpoint

    def add_child(self, child: "Node") -> None:
        """Puts a page behind this one."""
        if self._only_child is None and not self._children:
            self._only_child = child
            return
        if self._only_child is not None:
            self._children = {self._only_child.tokens: self._only_child}
            self._only_child = None
        self._children[child.tokens] = child

    def remove_child(self, child: "Node") -> None:
        """Takes a page away that has none behind it."""
        if self._only_child is child:
            self._only_child = None
        else:
            del self._children[child.tokens]

    def child(self, tokens: bytes) -> "Node | None":
        """The page of these tokens behind this one."""
        only = self._only_child
        if only is None:
            return self._children.get(tokens)
        return only if only.tokens == tokens else None

    @property
    def children(self) -> "Collection[Node]":
        """The pages behind this one."""
        return self._children.values() if self._only_child is None else (self._only_child,)

    def set_page(self, slot: int, page: PhysicalId | None) -> None:
        """Gives a token group another page here, or none."""
        self.pages = (*self.pages[:slot], page, *self.pages[slot + 1 :])


@dataclass(slots=True, eq=False)
class Checkpoint:
    """All states behind `node` and the tokens `tail`.

    `states` has the pages of every state group's parts; `partial` a page per token group
    that begins with `tail`, if there is one. One that is pinned stays.
    """

    node: Node
    tail: bytes
    states: dict[int, list[PhysicalId]]
    partial: list[PhysicalId | None]
    rank: int = USEFUL
    time: int = 0
    num_pins: int = 0
    is_dropped: bool = False

    @property
    def position(self) -> int:
        """Tokens behind which the states stand."""
        return self.node.length + len(self.tail) // TOKEN_BYTES


@dataclass(slots=True)
class Match:
    """What the cache has of a prompt: a hit of `position` tokens, and why not more.

    `path` are the nodes of the hit, the root first; `matched` counts the tokens that have
    been seen before, those without a checkpoint included, and `seen` has their nodes.
    `missing` names the first page that isn't there and that would make the hit longer, so that
    two who need it can be told.
    """

    position: int
    note: CacheNote
    path: list[Node]
    checkpoint: Checkpoint | None
    matched: int
    seen: list[Node]
    missing: "Missing | None"

    @property
    def unused(self) -> "Match":
        """The same prompt without the hit, for which there is no room beside the sequence."""
        return replace(self, position=0, note="evicted", path=self.path[:1], checkpoint=None)


Missing = tuple[Hashable, bytes]
"""What a page would stand behind, and its tokens."""


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Tokens as the tree compares them."""
    return array("i", tokens).tobytes()


class Finder:
    """Looks prompts up in the trees of all salts."""

    def __init__(
        self,
        roots: Mapping[str | None, Node],
        page_size: int,
        token_groups: Sequence[GroupPlan],
        has_states: bool,
    ) -> None:
        self._roots = roots
        self._page_size = page_size
        self._chunk = page_size * TOKEN_BYTES
        self._has_states = has_states
        self._windows = [(i, g) for i, g in enumerate(token_groups) if g.window is not None]

    def match(self, tokens: Sequence[int], salt: str | None = None) -> Match:
        """The longest hit for a prompt, of at most all but its last token."""
        limit = len(tokens) - 1
        data = token_bytes(tokens)
        path, ghost = self._walk(data, limit, salt)
        checkpoint: Checkpoint | None = None
        if self._has_states:
            position, checkpoint, window_gone = self._best_checkpoint(path, data, limit)
        else:
            position, window_gone = self._best_page(path)
        last = ghost or path[-1]
        return Match(
            position=position,
            note=self._note(position, len(tokens), path, ghost, window_gone, data, salt),
            path=path[: position // self._page_size + 1],
            checkpoint=checkpoint,
            matched=last.length,
            seen=path,
            missing=self._missing(last, data, position, limit),
        )

    def _missing(self, last: Node, data: bytes, position: int, limit: int) -> Missing | None:
        if position == limit or (last.length + self._page_size > limit and not self._has_states):
            return None
        start = last.length * TOKEN_BYTES
        behind = last.salt if last.parent is None else last  # a root may be made anew
        return behind, data[start : start + self._chunk]

    def _walk(self, data: bytes, limit: int, salt: str | None) -> tuple[list[Node], Node | None]:
        """The nodes of a prompt from its root on that have their pages, and the last without."""
        node = self._roots.get(salt) or Node(None, b"", 0, (), salt)
        path: list[Node] = [node]
        ghost: Node | None = None
        for start in range(0, limit // self._page_size * self._chunk, self._chunk):
            child = node.child(data[start : start + self._chunk])
            if child is None:
                break
            node = child
            if ghost is None and child.is_resident:
                path.append(child)
            else:
                ghost = child
        return path, ghost

    def positions(self, tokens: Sequence[int], salt: str | None = None) -> list[int]:
        """All places where a prompt that begins with these tokens, and has more, could go on."""
        data = token_bytes(tokens)
        path, _ = self._walk(data, len(tokens), salt)
        if self._has_states:
            found = self._checkpoints(path, data, len(tokens))
            places = [(checkpoint.position, checkpoint) for checkpoint in found]
        else:
            places = [(node.length, None) for node in path[1:]]
        return [place[0] for place in places if self._missing_page(path, *place) is None]

    def _checkpoints(self, path: list[Node], data: bytes, limit: int) -> Iterator[Checkpoint]:
        """Those of a prompt's own path, the longest first."""
        for node in reversed(path):
            begin = node.length * TOKEN_BYTES
            for tail in sorted(node.checkpoints, key=len, reverse=True):
                checkpoint = node.checkpoints[tail]
                if checkpoint.position <= limit and data.startswith(tail, begin):
                    yield checkpoint

    def _best_checkpoint(
        self, path: list[Node], data: bytes, limit: int
    ) -> tuple[int, Checkpoint | None, bool]:
        window_gone = False
        for checkpoint in self._checkpoints(path, data, limit):
            if self._missing_page(path, checkpoint.position, checkpoint) is None:
                return checkpoint.position, checkpoint, False
            window_gone = True
        return 0, None, window_gone

    def _best_page(self, path: list[Node]) -> tuple[int, bool]:
        position, window_gone = path[-1].length, False
        while position:
            missing = self._missing_page(path, position, None)
            if missing is None:
                return position, False
            window_gone = True
            position = missing * self._page_size
        return 0, window_gone

    def _missing_page(
        self, path: list[Node], position: int, checkpoint: Checkpoint | None
    ) -> int | None:
        """The last page of a window that would be needed to go on at `position` and isn't there."""
        full = position // self._page_size
        for slot, plan in self._windows:
            if checkpoint is not None and checkpoint.tail and checkpoint.partial[slot] is None:
                return full
            first = plan.first_kept(position) // self._page_size
            for index in range(full, first, -1):
                if path[index].pages[slot] is None:
                    return index - 1
        return None

    def _note(
        self,
        position: int,
        num_tokens: int,
        path: list[Node],
        ghost: Node | None,
        window_gone: bool,
        data: bytes,
        salt: str | None,
    ) -> CacheNote:
        if position:
            return "hit"
        if window_gone:
            return "window gone"
        if num_tokens <= self._page_size:
            return "below page size"
        if ghost is not None:
            return "evicted"
        if len(path) > 1:
            return "evicted" if any(node.lost_checkpoint for node in path) else "no checkpoint"
        first = data[: self._chunk]
        if any(root.child(first) for other, root in self._roots.items() if other != salt):
            return "salt differs"
        return "no match"
