"""The tree of prefixes: runs of pages of tokens, and the positions at which states are kept.

A node stands for one or more full pages of tokens behind those of its parent, and is found by
the tokens of its first page, so that nothing but equal tokens is ever taken for equal. Where
prompts part within a run, it is split. Each `cache_salt` has a root of its own. A node has
its pages in every token group; a checkpoint hangs on the node at whose end it stands, or up
to a page's tokens further on, and has a copy of every state.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridrt.cache.page_table import PhysicalId

if TYPE_CHECKING:
    from hybridrt.cache.place import Place

TOKEN_BYTES = 4
SUPERSEDED, USEFUL = 0, 1  # ranks of checkpoints

PagesOfGroups = dict[int, list[PhysicalId]]
"""Pages by the index of their group."""

Column = list[PhysicalId | None]
"""Pages of one token group in token order; None: dropped, since behind a window."""

_NONE: dict[bytes, Any] = {}
"""One for all nodes that have none, never changed: memory, and time of the collector."""
_NO_PAGES: set[int] = set()


class Node:
    """The pages number `first` to `end - 1` of a prompt; `length` counts all tokens to its end.

    The root has none. `columns` has the pages in each token group: those of the first
    `num_cached` that are left, while the others have been dropped and only their tokens are
    known. `users` are the sequences that go on behind it, of which some may have ended, and
    `branches` those of them that are folded, by their keys. Pages whose numbers are in `wanted`
    lie in the window before a place where prompts part, so that they are worth keeping behind a
    window too.
    """

    __slots__ = (
        "branches",
        "checkpoints",
        "children",
        "columns",
        "end",
        "first",
        "length",
        "lost_checkpoint",
        "num_cached",
        "num_cached_children",
        "parent",
        "salt",
        "time",
        "tokens",
        "users",
        "wanted",
    )

    def __init__(
        self,
        parent: "Node | None",
        tokens: bytes,
        end: int,
        length: int,
        columns: list[Column],
        salt: str | None,
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.first = 0 if parent is None else parent.end
        self.end = end
        self.length = length
        self.columns = columns
        self.salt = salt
        self.children: dict[bytes, Node] = _NONE
        self.checkpoints: dict[bytes, Checkpoint] = _NONE
        self.branches: dict[bytes, Place] = _NONE
        self.num_cached = end - self.first
        self.num_cached_children = 0  # those that have pages
        self.users = 0
        self.time = 0
        self.wanted = _NO_PAGES
        self.lost_checkpoint = False

    @property
    def is_whole(self) -> bool:
        """Whether it has all its pages; only behind such a one anything can be found."""
        return self.num_cached == self.end - self.first

    def add_checkpoint(self, checkpoint: "Checkpoint") -> None:
        """Hangs a checkpoint on this node."""
        if self.checkpoints is _NONE:
            self.checkpoints = {}
        self.checkpoints[checkpoint.tail] = checkpoint

    def add_child(self, first_page: bytes, child: "Node") -> None:
        """Puts a run that begins with this page behind this one."""
        if self.children is _NONE:
            self.children = {}
        self.children[first_page] = child

    def add_branch(self, place: "Place") -> None:
        """Hangs a folded sequence on this node."""
        if self.branches is _NONE:
            self.branches = {}
        self.branches[place.key] = place

    @property
    def num_branchings(self) -> int:
        """How many ways lead on from its end."""
        return len(self.children) + len(self.branches)

    def want(self, pages: range) -> None:
        """Notes which of its pages are wanted; `pages` may have numbers of others too."""
        if self.wanted is _NO_PAGES:
            self.wanted = set()
        self.wanted.update(range(max(pages.start, self.first), min(pages.stop, self.end)))

    def to_root(self) -> "Iterator[Node]":
        """This node, its parent, and so on."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def holder(self, page: int) -> "Node":
        """The node of the page with that number: this one, or one before it."""
        node = self
        while page < node.first:
            assert node.parent is not None
            node = node.parent
        return node

    def page(self, slot: int, number: int) -> PhysicalId | None:
        """The page of that number in a token group, if it is there."""
        index = number - self.first
        return self.columns[slot][index] if 0 <= index < self.num_cached else None

    def num_common(self, tokens: bytes, begin: int, most: int, chunk: int) -> int:
        """How many of its first pages, of `chunk` bytes, are the `tokens` from `begin` on."""
        own = self.tokens
        if len(own) <= most * chunk and tokens.startswith(own, begin):
            return self.end - self.first
        count, end = 0, min(self.end - self.first, most)
        while count < end:
            middle = (count + end + 1) // 2
            if tokens.startswith(own[count * chunk : middle * chunk], begin + count * chunk):
                count = middle
            else:
                end = middle - 1
        return count

    def split(self, num_pages: int, chunk: int) -> "Node":
        """Makes the first `num_pages` a node of their own, before this one, and returns it.

        They all have to be there. What stands at this node's end goes on to stand there.
        """
        assert 0 < num_pages < self.end - self.first and num_pages <= self.num_cached
        parent = self.parent
        assert parent is not None
        at, tokens = num_pages * chunk, self.tokens
        page_size = (self.length - parent.length) // (self.end - self.first)
        before = Node(
            parent,
            tokens[:at],
            self.first + num_pages,
            parent.length + num_pages * page_size,
            [column[:num_pages] for column in self.columns],
            self.salt,
        )
        parent.add_child(tokens[:chunk], before)
        self.parent = before
        self.tokens = tokens[at:]
        self.first = before.end
        self.columns = [column[num_pages:] for column in self.columns]
        self.num_cached -= num_pages
        before.add_child(self.tokens[:chunk], self)
        before.num_cached_children = int(self.num_cached > 0)
        before.time = self.time
        if self.wanted:
            before.wanted = {page for page in self.wanted if page < before.end}
            self.wanted -= before.wanted
        return before


@dataclass(slots=True, eq=False)
class Checkpoint:
    """All states behind `node` and the tokens `tail`.

    It is `position` tokens from the beginning. `pages` has those of every state group's parts,
    and of each token group the page that begins with `tail`, if there is one. One that is
    pinned stays. One of a folded `place` stands somewhere behind `node`, and has no `tail` yet.
    """

    node: Node
    tail: bytes
    position: int
    pages: PagesOfGroups
    rank: int = USEFUL
    num_pins: int = 0
    is_dropped: bool = False
    place: "Place | None" = None


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Tokens as the tree compares them."""
    return array("i", tokens).tobytes()
