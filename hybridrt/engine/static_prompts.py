"""A prompt of one sequence, padded to a few sizes, in tensors that don't move."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hybridrt.batch import ForwardBatch, Rows, StatePages, TokenPages
from hybridrt.cache.plan import GroupPlan
from hybridrt.engine.static_decode import NO_PLACE, table_width

STEP = 16  # tokens: what AMX multiplies at once, so that padding takes no time there
MOST_PIECES = 4  # that one prompt is cut into where states are left


class PromptShape(NamedTuple):
    """What tells steps with one prompt apart: its padded tokens, and in how many pieces it is.

    0 pieces: states are read and left where the sequence has its own, as a whole. One that doesn't
    start anew has a context.
    """

    tokens: int
    pieces: int
    starts_anew: bool


class StaticPrompts:
    """A batch with one prompt, of each shape, all on the same tensors.

    Tokens behind the prompt's are padding: token 0 at position 0, without a slot, and of no row.
    """

    def __init__(
        self,
        groups: Sequence[GroupPlan],
        most_tokens: int,
        max_model_len: int,
        *,
        switches_rope: bool,
    ) -> None:
        self._most = most_tokens
        self._input_ids = torch.zeros(most_tokens, dtype=torch.int64)
        self._positions = torch.zeros_like(self._input_ids)
        self._rope_positions = torch.zeros_like(self._positions) if switches_rope else None
        self._logits_indices = torch.zeros(1, dtype=torch.int64)
        self._whole = _rows(1)
        self._pieces = {count: _rows(count) for count in range(1, MOST_PIECES + 1)}
        self._tables: dict[str, Tensor] = {}
        self._slots: dict[str, Tensor] = {}
        self._parts: dict[str, int] = {}
        for group in groups:
            if group.kernel_block_size is None:
                self._parts[group.name] = group.parts
                continue
            # For padding, too, which nobody wants, but some kernels read.
            width = table_width(group, max_model_len + STEP, most_tokens)
            self._tables[group.name] = torch.zeros(1, width, dtype=torch.int32)
            self._slots[group.name] = torch.full((most_tokens,), NO_PLACE)
        self._batches: dict[PromptShape, ForwardBatch] = {}

    @property
    def tables(self) -> list[Tensor]:
        """The page tables of all groups."""
        return [*self._tables.values()]

    def takes(self, batch: ForwardBatch) -> bool:
        """Whether that is one prompt, behind which a token is sampled, and not too long."""
        if batch.num_decodes or batch.num_rows != 1 or batch.num_tokens > self._most:
            return False
        cut = batch.cut_rows
        fits = cut is None or (cut.num_decodes == 0 and cut.num_rows <= MOST_PIECES)
        return fits and len(batch.logits_indices) == 1

    def shape_of(self, batch: ForwardBatch) -> PromptShape:
        """Under which a batch is filled in."""
        cut = batch.cut_rows
        tokens, pieces = -(-batch.num_tokens // STEP) * STEP, 0 if cut is None else cut.num_rows
        return PromptShape(tokens, pieces, batch.starts_anew)

    def filled(self, batch: ForwardBatch) -> ForwardBatch:
        """The batch of that shape, with what this one has."""
        shape, count = self.shape_of(batch), batch.num_tokens
        own = self._batches.get(shape)
        if own is None:
            own = self._batches[shape] = self._batch(shape)
        _fill(own.input_ids, batch.input_ids, count, 0)
        _fill(own.positions, batch.positions, count, 0)
        if self._rope_positions is not None:
            _fill(own.rope_positions, batch.rope_positions, count, 0)
        own.logits_indices.copy_(batch.logits_indices)
        _fill_rows(own, batch)
        if batch.cut_rows is not None:
            _fill_rows(own.for_states, batch.cut_rows)
        for name, placed in batch.groups.items():
            into = own.groups[name]
            if isinstance(placed, StatePages):
                assert isinstance(into, StatePages)
                into.pages.copy_(placed.pages)
                into.initial_pages.copy_(placed.initial_pages)
            else:
                assert isinstance(into, TokenPages)
                _fill(into.slots, placed.slots, count, NO_PLACE)
                width = min(into.page_table.shape[1], placed.page_table.shape[1])
                _fill(into.page_table[0], placed.page_table[0], width, 0)
        return own

    def _batch(self, shape: PromptShape) -> ForwardBatch:
        groups: dict[str, TokenPages | StatePages] = {}
        for name, table in self._tables.items():
            groups[name] = TokenPages(table, self._slots[name][: shape.tokens])
        for name, parts in self._parts.items():
            pages = torch.zeros(2, parts, max(1, shape.pieces), dtype=torch.int64)
            groups[name] = StatePages(*pages)
        positions = self._positions[: shape.tokens]
        turned = self._rope_positions
        whole = self._whole
        return ForwardBatch(
            input_ids=self._input_ids[: shape.tokens],
            positions=positions,
            rope_positions=positions if turned is None else turned[: shape.tokens],
            logits_indices=self._logits_indices,
            groups=groups,
            cut_rows=self._pieces[shape.pieces] if shape.pieces else None,
            seq_lens=whole.seq_lens,
            cu_seqlens_q=whole.cu_seqlens_q,
            has_initial_state=whole.has_initial_state,
            query_lens=whole.query_lens,
            context_lens=whole.context_lens,
            follows=whole.follows,
            num_decodes=0,
            starts_anew=shape.starts_anew,
        )


def _rows(count: int) -> Rows:
    return Rows(
        seq_lens=torch.zeros(count, dtype=torch.int32),
        cu_seqlens_q=torch.zeros(count + 1, dtype=torch.int32),
        has_initial_state=torch.zeros(count, dtype=torch.bool),
        query_lens=torch.zeros(count, dtype=torch.int64),
        context_lens=torch.zeros(count, dtype=torch.int64),
        follows=torch.zeros(count, dtype=torch.bool),
        num_decodes=0,
        starts_anew=False,
    )


def _fill(into: Tensor, given: Tensor, count: int, padding: int) -> None:
    """Writes so many numbers, and behind them padding, by numpy: in less time than torch."""
    numbers = into.numpy()
    numbers[:count] = given.numpy()[:count]
    numbers[count:] = padding


def _fill_rows(into: Rows, given: Rows) -> None:
    pairs = (
        (into.seq_lens, given.seq_lens),
        (into.cu_seqlens_q, given.cu_seqlens_q),
        (into.has_initial_state, given.has_initial_state),
        (into.query_lens, given.query_lens),
        (into.context_lens, given.context_lens),
        (into.follows, given.follows),
    )
    for numbers, own in pairs:
        numbers.numpy()[:] = own.numpy()
