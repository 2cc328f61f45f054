"""The batch builder: the rows of a step as the tensors that layers read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from hybridrt.batch import ForwardBatch, StatePages, TokenPages
from hybridrt.cache.page_table import PageTable
from hybridrt.cache.plan import UNENDING, GroupPlan
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.engine.scheduler import Row
from hybridrt.engine.state_rows import CutRows, cut_rows
from hybridrt.transfer import Shipment, to_device

SPARE_BLOCKS = 8  # columns of a page table for blocks that its rows are about to enter


class BatchBuilder:
    """Builds a `ForwardBatch` a step. Everything is made on the host and copied once.

    While the same sequences decode, the next batch is the last one with every position moved
    on by one, and with the blocks that some of them enter, in place; so a batch is valid
    until the next is built.
    """

    def __init__(
        self,
        pages: SequencePages,
        groups: Sequence[GroupPlan],
        device: torch.device,
        rope_switch_length: int | None = None,
    ) -> None:
        self._pages = pages
        self._groups = groups
        self._token_groups = [g for g, group in enumerate(groups) if group.kernel_block_size]
        self._device = device
        self._switch_length = rope_switch_length
        self._last: ForwardBatch | None = None
        self._last_rows: list[Row] = []
        self._num_replaced = 0
        self._moving: list[tuple[Any, Any]] = []  # what grows with each token of a decode, and one
        self._moves_left = 0  # until a row of a page table changes
        self._is_ahead = False  # those numbers have grown already for a batch to come
        self._has_tokens = False  # and its tokens are there
        self._input_ids: np.ndarray | None = None  # those of a batch in the host's memory

    def build(self, rows: list[Row]) -> ForwardBatch:
        """The batch of these rows, decodes first."""
        batch, num_replaced = self._last, self._pages.num_replaced
        if batch is None or not (self._follow(rows) and self._move_on(batch, rows)):
            batch = self._build(rows)
        self._last, self._last_rows, self._num_replaced = batch, rows, num_replaced
        return batch

    def _follow(self, rows: list[Row]) -> bool:
        """Whether these are the next tokens of the very sequences of the last batch.

        One that was preempted and found what it had is the same too, but has other pages.
        """
        if not self._moving or len(rows) != len(self._last_rows) or self._pages.unsettled:
            return False
        if self._num_replaced != self._pages.num_replaced:
            return False
        for (sequence, start, stop), last in zip(rows, self._last_rows, strict=True):
            if sequence is not last.sequence or start != last.stop or stop != start + 1:
                return False
        return True

    def _move_on(self, batch: ForwardBatch, rows: list[Row]) -> bool:
        """Makes the last batch the next one. Returns whether that was possible."""
        if self._moves_left == 0 and self._input_ids is None:
            return False
        if not self._is_ahead:
            self._move_numbers()
        if not self._has_tokens:
            self._write_tokens(batch, [sequence.token_ids[start] for sequence, start, _ in rows])
        self._is_ahead = self._has_tokens = False
        if self._moves_left == 0:
            self._moves_left = self._count_moves(rows, batch.context_lens.numpy())
            return all(self._enter_blocks(batch, g, rows) for g in self._token_groups)
        self._moves_left -= 1
        return True

    def move_ahead(
        self, sequences: Sequence[object], sampled: Int64[Tensor, " sequences"]
    ) -> ForwardBatch | None:
        """Makes of the last batch the next one, if the same rows go on with what was sampled.

        Its step must have been launched. Where tokens have to be copied to a device, they stay
        there. None: something else changes than numbers that grow.
        """
        if self._is_ahead or not self._moving or self._moves_left == 0:
            return None
        self._move_numbers()
        self._is_ahead = True
        batch, own = self._last, [row.sequence for row in self._last_rows]
        if self._input_ids is None and batch is not None and [*sequences] == own:
            batch.input_ids.copy_(sampled)
            self._has_tokens = True
        return batch

    def take_ahead(self, tokens: list[int] | None) -> ForwardBatch | None:
        """The batch that was moved ahead, with these tokens; None: none was.

        Without tokens it is to have them already.
        """
        if not self._is_ahead or self._last is None:
            return None
        if not self._has_tokens:
            if tokens is None:
                return None
            self._write_tokens(self._last, tokens)
            self._has_tokens = True
        return self._last

    def _write_tokens(self, batch: ForwardBatch, tokens: list[int]) -> None:
        if self._input_ids is None:
            batch.input_ids.copy_(to_device(torch.tensor(tokens), self._device), non_blocking=True)
        else:
            self._input_ids[:] = tokens

    def _move_numbers(self) -> None:
        for numbers, one in self._moving:
            numbers += one

    def _enter_blocks(self, batch: ForwardBatch, g: int, rows: list[Row]) -> bool:
        """Changes the rows of a page table that begin or end with another block now.

        Returns False if the table is too narrow.
        """
        group = self._groups[g]
        size, placed = group.kernel_block_size, batch.token_pages(group.name)
        assert size is not None
        starts = batch.context_lens.numpy()
        page_table, slots = placed.page_table.numpy(), placed.slots.numpy()
        changed = starts % size == 0
        if group.window is not None:
            first = group.window.first_visible
            changed |= [first(n) // size != first(n - 1) // size for n in starts.tolist()]
        for i in changed.nonzero()[0].tolist():
            (sequence, start, _), row = rows[i], page_table[i]
            ids = self._blocks(group, self._pages.tables(sequence.sequence_id)[g], start)
            if len(ids) > len(row):
                return False
            row[: len(ids)] = ids
            row[len(ids) :] = 0
            slots[i] = ids[start // size - group.first_kept(start) // size] * size + start % size
        return True

    def _build(self, rows: list[Row]) -> ForwardBatch:
        starts = np.array([row.start for row in rows], np.int64)
        stops = np.array([row.stop for row in rows], np.int64)
        lens = stops - starts
        num_decodes = int(((lens == 1) & (starts > 0)).sum())
        row_of_token = np.arange(len(rows))
        if num_decodes == len(rows):
            cu_seqlens, positions = np.arange(len(rows) + 1), starts.copy()
        else:
            cu_seqlens = np.concatenate([[0], lens.cumsum()])
            row_of_token = row_of_token.repeat(lens)
            positions = np.arange(cu_seqlens[-1]) - (cu_seqlens[:-1] - starts)[row_of_token]
        last = [sequence.token_ids[start] for sequence, start, _ in rows[:num_decodes]]
        chunks = [sequence.token_array(i, j) for sequence, i, j in rows[num_decodes:]]
        tokens = np.concatenate([np.array(last, np.int64), *chunks])
        samples = stops == [len(row.sequence.token_ids) for row in rows]
        shipment = Shipment(self._device)
        cut = cut_rows(rows, starts, stops, self._pages) if self._pages.unsettled else None
        offsets = self._rope_offsets(rows, row_of_token)
        batch = ForwardBatch(
            input_ids=shipment.add(tokens),
            positions=(on_device := shipment.add(positions)),
            rope_positions=on_device if offsets is None else shipment.add(positions + offsets),
            seq_lens=shipment.add(stops.astype(np.int32)),
            cu_seqlens_q=shipment.add(cu_seqlens.astype(np.int32)),
            has_initial_state=shipment.add(starts > 0),
            logits_indices=shipment.add((cu_seqlens[1:] - 1)[samples]),
            groups=self._place(rows, positions, row_of_token, cut, shipment),
            num_decodes=num_decodes,
            starts_anew=not starts[num_decodes:].any(),
            query_lens=torch.from_numpy(lens),
            context_lens=torch.from_numpy(starts),
            follows=torch.zeros(len(rows), dtype=torch.bool),
            cut_rows=None if cut is None else cut.as_rows(shipment),
        )
        shipment.send()
        self._is_ahead = self._has_tokens = False
        decodes = num_decodes == len(rows) and bool(samples.all()) and cut is None
        self._moves_left = self._count_moves(rows, starts) if decodes else 0
        self._moving = _moving(batch) if decodes else []
        self._input_ids = batch.input_ids.numpy() if self._device.type == "cpu" else None
        return batch

    def _rope_offsets(
        self, rows: list[Row], row_of_token: Int64[np.ndarray, " tokens"]
    ) -> Int64[np.ndarray, " tokens"] | None:
        """Moves positions to the other half of a table in two halves; see `Rope`. None: no such."""
        switch = self._switch_length
        if switch is None:
            return None
        offsets = np.array([switch * (len(row.sequence.token_ids) > switch) for row in rows])
        return offsets[row_of_token]

    def _place(
        self,
        rows: list[Row],
        positions: Int64[np.ndarray, " tokens"],
        row_of_token: Int64[np.ndarray, " tokens"],
        cut: CutRows | None,
        shipment: Shipment,
    ) -> dict[str, TokenPages | StatePages]:
        tables = [self._pages.tables(row.sequence.sequence_id) for row in rows]
        placed: dict[str, TokenPages | StatePages] = {}
        for g, group in enumerate(self._groups):
            own = [table[g] for table in tables]
            if group.kernel_block_size is None:
                placed[group.name] = _states(g, own, cut, shipment)
            else:
                placed[group.name] = self._tokens(
                    group, own, rows, positions, row_of_token, shipment
                )
        return placed

    def _tokens(
        self,
        group: GroupPlan,
        tables: list[PageTable],
        rows: list[Row],
        positions: Int64[np.ndarray, " tokens"],
        row_of_token: Int64[np.ndarray, " tokens"],
        shipment: Shipment,
    ) -> TokenPages:
        size = group.kernel_block_size
        assert size is not None
        blocks, offsets = np.divmod(positions, size)
        if group.window is not None:  # the tables begin where a row's first token sees
            first = [group.window.first_visible(row.start) // size for row in rows]
            blocks -= np.array(first)[row_of_token]
        ids = [
            self._blocks(group, table, row.start) for table, row in zip(tables, rows, strict=True)
        ]
        page_table = np.zeros((len(ids), max(map(len, ids)) + SPARE_BLOCKS), np.int32)
        for row_blocks, row_ids in zip(page_table, ids, strict=True):
            row_blocks[: len(row_ids)] = row_ids
        slots = page_table[row_of_token, blocks].astype(np.int64) * size + offsets
        return TokenPages(shipment.add(page_table), shipment.add(slots))

    def _blocks(
        self, group: GroupPlan, table: PageTable, start: int
    ) -> Int32[np.ndarray, " blocks"]:
        """A sequence's kernel blocks from that of the first token that token `start` sees."""
        if group.window is None or group.kernel_block_size is None:
            return table.kernel_ids_from(0)
        first = group.window.first_visible(start) // group.kernel_block_size
        return table.kernel_ids_from(first - group.blocks_per_page * table.num_released)

    def _count_moves(self, rows: list[Row], starts: Int64[np.ndarray, " rows"]) -> int:
        """Tokens that all rows can be decoded by before a row of a page table changes."""
        moves = UNENDING
        for g in self._token_groups:
            group = self._groups[g]
            size = group.kernel_block_size
            assert size is not None
            moves = min(moves, size - 1 - int((starts % size).max()))
            if group.window is not None:
                for _, start, _ in rows:
                    last_of_first = group.window.first_visible(start) // size * size + size - 1
                    moves = min(moves, group.window.unseen_from(last_of_first) - start - 1)
        return moves


def _states(g: int, tables: list[PageTable], cut: CutRows | None, shipment: Shipment) -> StatePages:
    ids = np.array([table.physical_ids for table in tables], np.int64)
    if cut is None:
        pages = shipment.add(np.ascontiguousarray(ids.T))
        return StatePages(pages, initial_pages=pages)
    pages = shipment.add(cut.state_pages(g, ids, initial=False))
    return StatePages(pages, shipment.add(cut.state_pages(g, ids, initial=True)))


def _moving(batch: ForwardBatch) -> list[tuple[Any, Any]]:
    """Of a batch of decodes, the numbers that the next token makes larger, and a one for each.

    Those in the host's memory are put into one array, which is changed in the time of one.
    """
    tensors = [batch.positions, batch.context_lens]
    if batch.rope_positions is not batch.positions:
        tensors.append(batch.rope_positions)
    tensors += [g.slots for g in batch.groups.values() if isinstance(g, TokenPages)]
    on_host = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    together = torch.stack(on_host)
    for tensor, row in zip(on_host, together, strict=True):
        tensor.set_(row)  # pyright: ignore[reportArgumentType]
    moving: list[tuple[Any, Any]] = [(together.numpy(), np.ones(1, np.int64))]
    moving += [(tensor, 1) for tensor in tensors if tensor.device.type != "cpu"]
    if batch.seq_lens.device.type == "cpu":
        return [*moving, (batch.seq_lens.numpy(), np.ones(1, np.int32))]
    return [*moving, (batch.seq_lens, 1)]
