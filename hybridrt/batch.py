"""ForwardBatch: everything a layer needs to know about one step, as a plain value."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Bool, Int32, Int64
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenPages:
    """Where a token-kind group keeps the tokens of this batch.

    `page_table[i]` lists the kernel blocks of row i in token order (behind the last
    one stand zeros); `slots[t]` is `kernel_block_id * kernel_block_size + offset` of
    the new token t, or -1 for padding, which no writer writes.
    """

    page_table: Int32[Tensor, "rows max_blocks"]
    slots: Int64[Tensor, " tokens"]


@dataclass(frozen=True, slots=True)
class StatePages:
    """Where a state group keeps the sequences of this batch: one page id a row."""

    pages: Int64[Tensor, " rows"]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step: rows of sequences, their new tokens laid end to end, no padding.

    The first `num_decodes` rows continue a sequence by one token; the rest are
    prefill chunks, of any length, of which those with `has_initial_state` continue a
    sequence too. `query_lens` and `context_lens` (tokens computed before this step)
    repeat `cu_seqlens_q` and `seq_lens` on the host, so that no layer has to ask the
    device for them.
    """

    input_ids: Int64[Tensor, " tokens"]
    positions: Int64[Tensor, " tokens"]
    rope_positions: Int64[Tensor, " tokens"]
    seq_lens: Int32[Tensor, " rows"]
    cu_seqlens_q: Int32[Tensor, " rows+1"]
    has_initial_state: Bool[Tensor, " rows"]
    logits_indices: Int64[Tensor, " logits"]
    groups: Mapping[str, TokenPages | StatePages]
    num_decodes: int
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    def token_pages(self, group: str) -> TokenPages:
        """The pages of a token-kind group."""
        pages = self.groups[group]
        assert isinstance(pages, TokenPages), f"group {group!r} holds states"
        return pages

    def state_pages(self, group: str) -> Int64[Tensor, " rows"]:
        """The page id of each row in a state group."""
        pages = self.groups[group]
        assert isinstance(pages, StatePages), f"group {group!r} holds tokens"
        return pages.pages

    @property
    def prefills(self) -> list["Prefill"]:
        """The prefill rows with their ranges of tokens."""
        start = self.num_decodes  # decode rows have one token each
        rows: list[Prefill] = []
        for row in range(self.num_decodes, len(self.query_lens)):
            stop = start + self.query_lens[row]
            rows.append(Prefill(row, start, stop, self.context_lens[row]))
            start = stop
        return rows


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prefill row: its tokens are `start:stop` of the batch, behind `context` earlier ones."""

    row: int
    start: int
    stop: int
    context: int
