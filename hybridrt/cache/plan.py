"""The plan: how many bytes a slab, a page and a kernel block of each group take.

Every group cuts a slab into its own whole number of equal pages (see docs/cache.md for
why this wastes so little), and everything is known before a byte is allocated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, lcm

from hybridrt.cache.cuts import ACCEPTED_PADDING
from hybridrt.cache.spec import Kind, Window
from hybridrt.show import Shown, ShowsItself

UNENDING = 2**40
"""Tokens: more than any sequence has."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group. `page_bytes` is what its layers need, `page_stride` what a page gets.

    A sequence holds a page for every `page_size` tokens, those behind its `window` only
    while a token still sees them. In a group of the kind `state` (no `page_size`) it
    holds `parts` pages, each with the states of some of the layers; `page_bytes` is then
    what the fullest needs, and `sequence_bytes` what all need together.
    """

    name: str
    kind: Kind
    layers: tuple[str, ...]
    page_size: int | None
    kernel_block_size: int | None
    page_bytes: int
    page_stride: int
    pages_per_slab: int
    window: Window | None = None
    parts: int = 1
    sequence_bytes: int = 0

    @property
    def blocks_per_page(self) -> int:
        """Kernel blocks in a page; a state's page is one block."""
        return 1 if self.page_size is None else self.page_size // (self.kernel_block_size or 1)

    @property
    def block_stride(self) -> int:
        """Bytes from one kernel block to the next."""
        return self.page_stride // self.blocks_per_page

    @property
    def padding_bytes(self) -> int:
        """Bytes that no layer uses, in a page or in all the parts of a state."""
        needed = self.sequence_bytes if self.page_size is None else self.page_bytes
        return self.parts * self.page_stride - needed

    @property
    def padding_percent(self) -> float:
        """The share of a group's pages that no layer uses."""
        return 100 * self.padding_bytes / (self.parts * self.page_stride)

    def first_kept(self, num_tokens: int) -> int:
        """The first token that is kept of a sequence of that many, for those to come."""
        return 0 if self.window is None else self.window.first_visible(num_tokens)

    def used_bytes(self, num_pages: int) -> int:
        """Bytes of so many pages that layers use: all but the padding.

        Only all parts of a state together have a padding of their own.
        """
        return num_pages * self.page_stride - num_pages * self.padding_bytes // self.parts

    def pages_for(self, num_tokens: int, first: int = 0) -> int:
        """Pages that hold the tokens `first` to `num_tokens - 1` of a sequence."""
        if num_tokens <= 0:
            return 0
        if self.page_size is None:
            return self.parts
        return -(-num_tokens // self.page_size) - first // self.page_size

    def most_pages(self, num_tokens: int) -> int:
        """The most pages that a sequence holds while it grows to that length by a page at a time.

        For a window that is one page more than it fills, of which it sees two in part.
        """
        pages = self.pages_for(num_tokens)
        if self.window is None or self.page_size is None:
            return pages
        return min(pages, -(-(self.window.size - 1) // self.page_size) + 1)


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One cached layer. `offset` is its first byte within a kernel block of its group.

    In a split state group the page is the one of `part`. `bytes_per_sequence` is what a
    state takes, or a full window. `tokens_per_entry` tokens are cached as one.
    """

    index: int
    name: str
    kind: Kind
    mixer: str
    group: str
    page_size: int | None
    kernel_block_size: int | None
    bytes_per_page: int
    bytes_per_token: int
    bytes_per_sequence: int
    states: tuple[tuple[str, tuple[int, ...], str], ...]
    offset: int
    block_bytes: int
    window: Window | None = None
    part: int = 0
    tokens_per_entry: int = 1

    @property
    def empty_share(self) -> float:
        """The share of the places for entries that stay empty in every kernel block."""
        held = (self.kernel_block_size or 1) / self.tokens_per_entry
        return 1 - held / ceil(held)

    def bytes_for(self, num_tokens: int) -> int:
        """Bytes that this layer needs of a sequence of that many tokens, without any rounding."""
        if self.kind == "state":
            return self.bytes_per_sequence
        kept = num_tokens if self.window is None else min(num_tokens, self.window.size)
        return kept * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class CachePlan(ShowsItself):
    """Sizes of everything in the pool `uint8[num_slabs, slab_bytes]`. It prints as a table."""

    slab_bytes: int
    num_slabs: int
    groups: tuple[GroupPlan, ...]
    layers: tuple[LayerPlan, ...]

    @property
    def pool_bytes(self) -> int:
        return self.slab_bytes * self.num_slabs

    @property
    def padding_percent(self) -> float:
        """The largest share of a page that no layer uses, over the groups."""
        return max((group.padding_percent for group in self.groups), default=0.0)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that grow with every token of a sequence, over all layers without a window."""
        return sum(layer.bytes_per_token for layer in self.layers if layer.kind == "full")

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes of states, which every sequence takes whatever its length, over all layers."""
        return sum(layer.bytes_per_sequence for layer in self.layers if layer.kind == "state")

    @property
    def bytes_per_window_token(self) -> int:
        """Bytes of a token in the layers that keep it only as long as it is seen."""
        return sum(layer.bytes_per_token for layer in self.layers if layer.kind == "window")

    @property
    def least_shared_prompt(self) -> int:
        """Tokens of the shortest prompt that can begin with a whole page of another's.

        The last token is always computed, since its logits are wanted.
        """
        return max((group.page_size or 1 for group in self.groups), default=0) + 1

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worse in this plan than one would expect, and why."""
        return (*self._note_of_padding(), *self._note_of_entries())

    def _note_of_padding(self) -> tuple[str, ...]:
        if self.padding_percent < 100 * ACCEPTED_PADDING:
            return ()
        worst = max(self.groups, key=lambda group: group.padding_percent)
        return (
            f"No cut of {self.pool_bytes:,} bytes pads less than {100 * ACCEPTED_PADDING:.0f} %: "
            f"group {worst.name!r} has {worst.padding_percent:.1f} %. A larger cache_memory or a "
            f"smaller page_size allows better cuts.",
        )

    def _note_of_entries(self) -> tuple[str, ...]:
        full = [layer for layer in self.layers if layer.kind == "full"]
        empty = sum(layer.empty_share * layer.bytes_per_token for layer in full)
        if empty <= ACCEPTED_PADDING * self.bytes_per_token:
            return ()
        rates = [layer.tokens_per_entry for layer in full]
        return (
            f"{100 * empty / self.bytes_per_token:.1f} % of what a token takes are places for "
            f"entries that stay empty: an entry is of up to {max(rates)} tokens, a kernel block of "
            f"{min(layer.kernel_block_size or 1 for layer in full)}. With page_size={lcm(*rates)} "
            f"there are none; pages of windows grow with it.",
        )

    def group(self, name: str) -> GroupPlan:
        """The group of that name."""
        return next(group for group in self.groups if group.name == name)

    def bytes_for(self, num_tokens: int) -> int:
        """Bytes that a sequence of that many tokens needs, without any rounding."""
        return sum(layer.bytes_for(num_tokens) for layer in self.layers)

    def slabs_for(self, num_tokens: int, num_sequences: int = 1) -> int:
        """Slabs that so many sequences of so many tokens each need, with no other running."""
        return sum(
            -(-num_sequences * group.most_pages(num_tokens) // group.pages_per_slab)
            for group in self.groups
        )

    def sequences_of(self, num_tokens: int) -> int | None:
        """How many sequences of that length fit at once; None: any number, nothing is cached."""
        if num_tokens <= 0:
            return None
        return _largest(lambda count: self.slabs_for(num_tokens, count) <= self.num_slabs, self)

    def longest_sequence(self) -> int | None:
        """Tokens of the longest sequence that fits alone; None: any length does."""
        fits = self.slabs_for(1) <= self.num_slabs
        if not any(group.kind == "full" for group in self.groups):
            return None if self.slabs_for(UNENDING) <= self.num_slabs else self._longest(fits)
        return self._longest(fits)

    def _longest(self, fits: bool) -> int | None:
        if not fits:
            return 0
        return _largest(lambda tokens: self.slabs_for(tokens) <= self.num_slabs, self)

    def shown(self) -> Shown:
        """The groups, the layers, and what a sequence takes of the pool."""
        from hybridrt.cache.explain import plan_shown

        return plan_shown(self)

    def explain(self) -> str:
        """The plan as a table for people."""
        from hybridrt.cache.explain import explain

        return explain(self)

    def byte_map(self) -> str:
        """Every tensor in a page of each group, byte by byte, as a table for people."""
        from hybridrt.cache.byte_map import byte_map

        return byte_map(self)


def _largest(fits: Callable[[int], bool], plan: CachePlan) -> int | None:
    """The largest number that fits, which every smaller one does too."""
    if not plan.groups:
        return None
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
