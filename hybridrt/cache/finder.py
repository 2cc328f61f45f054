"""Looks prompts up in the tree of prefixes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

from hybridrt.cache.plan import GroupPlan
from hybridrt.cache.prefix_tree import TOKEN_BYTES, Checkpoint, Column, Node, token_bytes

if TYPE_CHECKING:
    from hybridrt.cache.place import Place

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

RECENT = 8  # pages of the many that may stand behind one, looked at for their first tokens

Missing = tuple[str | None, int, int]
"""A page by its salt, the tokens to its end, and their hash: two who lack the same find out."""


@dataclass(slots=True)
class Match:
    """What the cache has of a prompt: a hit of `position` tokens, and why not more.

    The prompt leads from the root to `node`, or part of the way to its end. `matched` counts
    the tokens that have been seen before, those without a checkpoint or pages included.
    `missing` is the first page that isn't there and that would make the hit longer. `data` are
    the tokens as the tree compares them.
    """

    position: int
    note: CacheNote
    node: Node
    checkpoint: Checkpoint | None
    matched: int
    missing: Missing | None
    data: bytes

    @property
    def unused(self) -> "Match":
        """The same prompt without the hit, for which there is no room beside the sequence."""
        return replace(self, position=0, note="evicted", checkpoint=None)

    def pages(self, slot: int, first: int, end: int) -> Column:
        """The pages number `first` to `end - 1` in a token group."""
        runs: list[Column] = []
        for node in self.node.to_root():
            if node.end <= first:
                break
            if node.first < end:
                runs.append(node.columns[slot][max(0, first - node.first) : end - node.first])
        pages: Column = []
        for run in reversed(runs):
            pages += run
        return pages


@dataclass(slots=True)
class _Walk:
    """The nodes that a prompt leads through, and how many tokens of it are seen on the way.

    Those that are `cached` have their pages, and are on the `path`; all of them are `matched`.
    """

    path: list[Node]
    cached: int
    matched: int


class Finder:
    """Looks prompts up in the trees of all salts."""

    def __init__(
        self,
        roots: Mapping[str | None, Node],
        page_size: int,
        token_groups: Sequence[tuple[int, GroupPlan]],
        has_states: bool,
        unfold: "Callable[[Place], None]",
    ) -> None:
        self._roots = roots
        self._page_size = page_size
        self._chunk = page_size * TOKEN_BYTES
        self._half = page_size // 2 * TOKEN_BYTES
        self._has_states = has_states
        self._unfold = unfold
        self._windows = [
            (slot, g, plan)
            for slot, (g, plan) in enumerate(token_groups)
            if plan.window is not None
        ]

    def match(self, data: bytes, salt: str | None = None) -> Match:
        """The longest hit for a prompt as `token_bytes`, of at most all but its last token."""
        limit = len(data) // TOKEN_BYTES - 1
        walk = self._walk(data, limit, salt)
        checkpoint: Checkpoint | None = None
        if self._has_states:
            checkpoint, window_gone = self._best_checkpoint(walk, data, limit)
            position = 0 if checkpoint is None else checkpoint.position
        else:
            position, window_gone = self._best_page(walk)
        note: CacheNote = "hit"
        if not position:
            note = "window gone" if window_gone else self._note_of_miss(walk, data, salt)
        missing = self._missing(walk.matched, data, position, salt)
        return Match(position, note, walk.path[-1], checkpoint, walk.matched, missing, data)

    def _missing(
        self, matched: int, data: bytes, position: int, salt: str | None
    ) -> Missing | None:
        num_tokens = len(data) // TOKEN_BYTES
        end = (matched // self._page_size + 1) * self._page_size
        if position == num_tokens - 1 or (end >= num_tokens and not self._has_states):
            return None
        end = min(end, num_tokens)
        return salt, end, hash(data[: end * TOKEN_BYTES])

    def _walk(self, data: bytes, limit: int, salt: str | None) -> _Walk:
        node = self._roots.get(salt) or Node(None, b"", 0, 0, [], salt)
        path, chunk = [node], self._chunk
        most = limit // self._page_size
        cached = matched = 0
        while True:
            at = matched * chunk
            if node.branches:
                branch = node.branches.get(data[at : at + self._half])
                if branch is not None:
                    self._unfold(branch)
                    return self._walk(data, limit, salt)
            child = node.children.get(data[at : at + chunk]) if matched < most else None
            if child is None:
                break
            common = child.num_common(data, at, most - matched, chunk)
            if cached == matched and child.num_cached:
                path.append(child)
                cached += min(common, child.num_cached)
            matched += common
            if matched < child.end:
                node = child
                break
            node = child
        size = self._page_size
        part = 0
        if self._has_states and (node.children or matched < node.end):
            part = self._part_of_next(node, matched, data, limit)
        return _Walk(path, cached * size, matched * size + part)

    def _part_of_next(self, node: Node, page: int, data: bytes, limit: int) -> int:
        """Tokens of the prompt's next page that one behind it begins with, in or behind `node`.

        Fewer than half of a page are none: a state isn't worth keeping for their sake.
        """
        at, size = page * self._chunk, self._page_size
        most = min(size - 1, limit - page * size)
        if page < node.end:
            begin = (page - node.first) * self._chunk
            nexts: Iterable[bytes] = (node.tokens[begin : begin + self._chunk],)
        else:  # where several part here, they part from the prompt at the same token as a rule
            nexts = islice(reversed(node.children), RECENT)
        longest, least = 0, max(1, size // 2)
        if least > most:
            return 0
        begin = data[at : at + least * TOKEN_BYTES]
        for tokens in nexts:
            while tokens.startswith(begin):
                longest, least = least, least + 1
                if least > most:
                    return longest
                begin = data[at : at + least * TOKEN_BYTES]
        return longest

    def positions(self, tokens: Sequence[int], salt: str | None = None) -> list[int]:
        """All places where a prompt that begins with these tokens, and has more, could go on."""
        data = token_bytes(tokens)
        walk, size = self._walk(data, len(tokens), salt), self._page_size
        if self._has_states:
            found = self._checkpoints(walk, data, len(tokens))
            places = [(checkpoint.position, checkpoint) for checkpoint in found]
        else:
            places = [(position, None) for position in range(size, walk.cached + 1, size)]
        return [place[0] for place in places if self._missing_page(walk.path, *place) is None]

    def checkpoints(self, tokens: Sequence[int], salt: str | None = None) -> list[Checkpoint]:
        """All copies of states behind these tokens' prefixes, the longest first.

        Those of whose windows something is gone, so that nothing can go on there, are among them.
        """
        data = token_bytes(tokens)
        return [*self._checkpoints(self._walk(data, len(tokens), salt), data, len(tokens))]

    def _checkpoints(self, walk: _Walk, data: bytes, limit: int) -> Iterator[Checkpoint]:
        """Those of a prompt's own path, the longest first."""
        for node in reversed(walk.path):
            if not node.checkpoints or node.length > walk.cached:
                continue
            most = min(self._page_size - 1, limit - node.length)
            start, end = node.length * TOKEN_BYTES, (node.length + most) * TOKEN_BYTES
            tails: Iterable[bytes] = node.checkpoints
            if len(node.checkpoints) > self._page_size:
                tails = [data[start:stop] for stop in range(start, end + 1, TOKEN_BYTES)]
            own = [tail for tail in tails if data.startswith(tail, start, end)]
            for tail in sorted(own, key=len, reverse=True):
                checkpoint = node.checkpoints.get(tail)
                if checkpoint is not None:
                    yield checkpoint

    def _best_checkpoint(
        self, walk: _Walk, data: bytes, limit: int
    ) -> tuple[Checkpoint | None, bool]:
        window_gone = False
        if not (walk.cached or walk.path[0].checkpoints):  # as of most prompts that are new
            return None, False
        for checkpoint in self._checkpoints(walk, data, limit):
            if self._missing_page(walk.path, checkpoint.position, checkpoint) is None:
                return checkpoint, False
            window_gone = True
        return None, window_gone

    def _best_page(self, walk: _Walk) -> tuple[int, bool]:
        position, window_gone = walk.cached, False
        while position:
            missing = self._missing_page(walk.path, position, None)
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
        for slot, g, plan in self._windows:
            if checkpoint is not None and checkpoint.tail and g not in checkpoint.pages:
                return full
            first = plan.first_kept(position) // self._page_size
            for node in reversed(path):
                if node.end <= first:
                    break
                begin = max(first, node.first)
                column = node.columns[slot][begin - node.first : max(0, full - node.first)]
                for index in range(len(column) - 1, -1, -1):
                    if column[index] is None:
                        return begin + index
        return None

    def _note_of_miss(self, walk: _Walk, data: bytes, salt: str | None) -> CacheNote:
        if len(data) <= self._chunk:
            return "below page size"
        if walk.cached < walk.matched:
            return "evicted"
        if walk.cached:
            return "evicted" if any(node.lost_checkpoint for node in walk.path) else "no checkpoint"
        first = data[: self._chunk]
        for other, root in self._roots.items():
            if other == salt:
                continue
            branch = root.branches.get(first[: self._half])
            is_folded = branch is not None and branch.prompt.startswith(first)
            if is_folded or first in root.children:
                return "salt differs"
        return "no match"
