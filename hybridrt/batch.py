"""ForwardBatch: everything a layer needs to know about one step, as a plain value."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Bool, Int32, Int64
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenPages:
    """Where a token-kind group keeps the tokens of this batch.

    `page_table[i]` lists kernel blocks of row i in token order, behind the last one
    zeros. It begins with the block of the first token that row i's first new token sees:
    with the first of all in a `full` group, and in a `window` group with that of
    `window.first_visible(context_len)`. `slots[t]` is `kernel_block_id *
    kernel_block_size + offset` of the new token t, or -1 for padding, which no writer
    writes.
    """

    page_table: Int32[Tensor, "rows max_blocks"]
    slots: Int64[Tensor, " tokens"]


@dataclass(frozen=True, slots=True)
class StatePages:
    """Where a state group keeps the sequences of this batch: page ids for each part and row.

    A state of many bytes may be split by layers into parts, each in a page of its own. Row i
    starts from the state in page `initial_pages[:, i]`, if it has one, and leaves its own in
    `pages[:, i]`; see `Rows` for when the two are unlike.

    A page of -1 is of a decode row that is padding: it starts from zeros and its state is left
    nowhere. Padding rows are the last ones.
    """

    pages: Int64[Tensor, "parts rows"]
    initial_pages: Int64[Tensor, "parts rows"]


@dataclass(frozen=True, slots=True)
class Rows:
    """What a kernel needs to know of a step: which tokens belong together.

    The new tokens of all rows are laid end to end, without padding. The first
    `num_decodes` rows continue a sequence by one token; the rest are prefill chunks, of
    any length, of which those with `has_initial_state` continue a sequence too.

    A chunk may be cut into several prefill rows, so that the state at each cut is left in a
    page of its own. Of those all but the first follow: with `follows[i]` row i goes on with
    the sequence of row i - 1, and starts from the page in which that one leaves its state.
    A prefill row that doesn't may start from any page that no row of another sequence
    writes. A decode row starts from the page in which it leaves its state.

    `query_lens` and `context_lens` (tokens computed before the row's) repeat `cu_seqlens_q`
    and `seq_lens` in the host's memory, whatever the device, so that no kernel has to ask the
    device for them. `follows` is in the host's memory alone. `starts_anew` says that no prefill
    row has a context, to kernels that ask nobody else.
    """

    seq_lens: Int32[Tensor, " rows"]
    cu_seqlens_q: Int32[Tensor, " rows+1"]
    has_initial_state: Bool[Tensor, " rows"]
    query_lens: Int64[Tensor, " rows"]
    context_lens: Int64[Tensor, " rows"]
    follows: Bool[Tensor, " rows"]
    num_decodes: int
    starts_anew: bool

    @property
    def num_rows(self) -> int:
        return self.query_lens.shape[0]

    @property
    def prefills(self) -> list["Prefill"]:
        """The prefill rows with their ranges of tokens."""
        n = self.num_decodes
        if n == self.num_rows:
            return []
        start = n  # decode rows have one token each
        rows: list[Prefill] = []
        host = (self.query_lens.numpy()[n:].tolist(), self.context_lens.numpy()[n:].tolist())
        for row, (length, context) in enumerate(zip(*host, strict=True), n):
            rows.append(Prefill(row, start, start + length, context))
            start += length
        return rows

    @property
    def turns(self) -> list[slice]:
        """All rows, in order, as few runs of them in which none follows another of its run.

        So the states that a run starts from can be read at once, as soon as those that the
        runs before it leave are written.
        """
        stops = [self.num_rows]
        if self.num_decodes < self.num_rows:
            stops = [*self.follows.numpy().nonzero()[0].tolist(), *stops]
        return [slice(*run) for run in pairwise([0, *stops])]


@dataclass(frozen=True, slots=True)
class ForwardBatch(Rows):
    """One step: its rows, their new tokens, and per cache group where it keeps them."""

    input_ids: Int64[Tensor, " tokens"]
    positions: Int64[Tensor, " tokens"]
    rope_positions: Int64[Tensor, " tokens"]
    logits_indices: Int64[Tensor, " logits"]
    groups: Mapping[str, TokenPages | StatePages]
    cut_rows: Rows | None = None

    @property
    def for_states(self) -> Rows:
        """The rows as state groups have them: chunks cut where a state is to be left."""
        return self if self.cut_rows is None else self.cut_rows

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    def token_pages(self, group: str) -> TokenPages:
        """The pages of a token-kind group."""
        pages = self.groups[group]
        assert isinstance(pages, TokenPages), f"group {group!r} holds states"
        return pages

    def state_pages(self, group: str, part: int = 0) -> Int64[Tensor, " rows"]:
        """The page in which each row leaves its state, in one part of a state group."""
        return self._states(group).pages[part]

    def initial_state_pages(self, group: str, part: int = 0) -> Int64[Tensor, " rows"]:
        """The page with the state that each row starts from."""
        return self._states(group).initial_pages[part]

    def _states(self, group: str) -> StatePages:
        pages = self.groups[group]
        assert isinstance(pages, StatePages), f"group {group!r} holds tokens"
        return pages


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prefill row: its tokens are `start:stop` of the batch, behind `context` earlier ones."""

    row: int
    start: int
    stop: int
    context: int
