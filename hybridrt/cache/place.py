"""Where one sequence stands in the prefix cache, and what it is still to leave there."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hybridrt.cache.finder import Missing
from hybridrt.cache.page_table import PageTable
from hybridrt.cache.prefix_tree import TOKEN_BYTES, Checkpoint, Node, PagesOfGroups, token_bytes


class Exports(NamedTuple):
    """Positions at which a sequence's states are to be left in the cache, the most wanted first.

    No position comes twice. For those that are `regular`, and not known to be of use, nothing
    else is dropped.
    """

    wanted: Sequence[int] = ()
    regular: Sequence[int] = ()


NO_EXPORTS = Exports()


@dataclass(slots=True)
class Export:
    """Pages into which the states at a position are to be written, and their rank as such."""

    pages: PagesOfGroups
    rank: int


@dataclass(slots=True, eq=False)
class Place:
    """Where a sequence stands in the prefix cache.

    Its pages up to `node` are there. It begins with the states of `initial` at its next
    step, and if it `has_states` they are in its own pages already; `earlier` are the
    checkpoints that it began with and has left since. It is about to compute the page
    `missing`, and has when so many tokens are committed as that says. `prompt` are the tokens
    that it came with; those behind them are its own.

    With a `key` it is folded: what it has behind `node` is not in the tree, where others would
    find it, but hangs there as a whole until one comes whose tokens go on with the key, which
    most sequences never see. While it runs, the first `num_tokens` are in `tables`. When it has
    ended, `pages` has its own, and `output` the tokens behind the prompt. Without either, they
    have been dropped, and only the tokens are known.
    """

    node: Node
    initial: Checkpoint | None
    prompt: bytes = b""
    earlier: list[Checkpoint] = field(default_factory=list)
    exports: dict[int, Export] = field(default_factory=dict)
    missing: Missing | None = None
    has_states: bool = False
    key: bytes = b""
    tables: Sequence[PageTable] = ()
    num_tokens: int = 0
    output: Sequence[int] = ()
    pages: PagesOfGroups | None = None

    @property
    def folded(self) -> list[Checkpoint]:
        """The checkpoints that it has left and that are not in the tree."""
        return [checkpoint for checkpoint in self.earlier if checkpoint.place is self]

    def token_bytes(self, tokens: Sequence[int], start: int, stop: int) -> bytes:
        """Some of a sequence's tokens as the tree compares them."""
        if stop * TOKEN_BYTES <= len(self.prompt):
            return self.prompt[start * TOKEN_BYTES : stop * TOKEN_BYTES]
        return token_bytes(tokens[start:stop])

    def num_pages(self, page_size: int) -> int:
        """The full pages behind `node` that a folded place has."""
        return self.num_tokens // page_size - self.node.end
