"""The rows of a step as state groups have them: cut where a state is to be kept.

A chunk of a prompt that passes positions at which states are exported becomes several rows,
each of which leaves its state in the pages of an export and the last in the sequence's own.
A sequence that begins at a checkpoint reads its first state from there. Nothing is copied,
and no token is computed in a step of its own.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64

from hybridrt.batch import Rows as BatchRows
from hybridrt.cache.prefix_tree import PagesOfGroups
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.engine.scheduler import Row
from hybridrt.transfer import Shipment


@dataclass(frozen=True, slots=True)
class CutRows:
    """Rows in pieces, in their order: of each the row it is of, and its first and last token.

    A piece that `follows` goes on from the one before it. `reads` and `writes` have the state
    pages of those pieces, by number, that begin or end with others than the sequence's own.
    """

    row: Int64[np.ndarray, " pieces"]
    starts: Int64[np.ndarray, " pieces"]
    stops: Int64[np.ndarray, " pieces"]
    follows: Bool[np.ndarray, " pieces"]
    reads: Mapping[int, PagesOfGroups]
    writes: Mapping[int, PagesOfGroups]

    @property
    def num_decodes(self) -> int:
        """Pieces of one token that go on from the sequence's own state, and leave it there."""
        decodes = (self.stops - self.starts == 1) & (self.starts > 0)
        decodes[[*self.reads, *self.writes]] = False
        return int(decodes.sum())

    def state_pages(
        self, group: int, own: Int64[np.ndarray, "rows parts"], *, initial: bool
    ) -> Int64[np.ndarray, "parts pieces"]:
        """The pages that each piece's states are read from, with `initial`, or left in."""
        ids, others = own[self.row], self.reads if initial else self.writes
        if others:
            ids[[*others]] = [pages[group] for pages in others.values()]
        return np.ascontiguousarray(ids.T)

    def as_rows(self, shipment: Shipment) -> BatchRows:
        """The pieces as kernels know rows."""
        lens = self.stops - self.starts
        ends = np.zeros(len(lens) + 1, np.int32)
        lens.cumsum(out=ends[1:])
        return BatchRows(
            seq_lens=shipment.add(self.stops.astype(np.int32)),
            cu_seqlens_q=shipment.add(ends),
            has_initial_state=shipment.add(self.starts > 0),
            query_lens=torch.from_numpy(lens),
            context_lens=torch.from_numpy(self.starts),
            follows=torch.from_numpy(self.follows),
            num_decodes=self.num_decodes,
            starts_anew=not self.starts[self.num_decodes :].any(),
        )


def cut_rows(
    rows: Rows[Row],
    starts: Int64[np.ndarray, " rows"],
    stops: Int64[np.ndarray, " rows"],
    pages: SequencePages,
) -> CutRows | None:
    """All rows in pieces. None: each is one piece, from its own state to its own."""
    cuts: list[int] = []  # positions at which a piece ends and the next begins
    cut: list[int] = []  # the rows that have them
    reads: dict[int, PagesOfGroups] = {}
    writes: dict[int, PagesOfGroups] = {}
    for index in _unsettled(rows, pages):
        sequence, start, stop = rows[index]
        initial = pages.initial_states(sequence.sequence_id)
        if initial is not None:
            reads[index + len(cuts)] = initial
        for position, exported in pages.exports(sequence.sequence_id, start, stop):
            piece = index + len(cuts)
            writes[piece] = reads[piece + 1] = exported
            cuts.append(position)
            cut.append(index)
    if not reads:
        return None
    num_pieces = 1 + np.bincount(cut, minlength=len(rows))
    row = np.arange(len(rows)).repeat(num_pieces)
    starts, stops = starts[row], stops[row]
    follows = np.zeros(len(row), np.bool_)
    ends = np.array([*writes], np.int64)  # the pieces that a cut ends
    stops[ends] = starts[ends + 1] = cuts
    follows[ends + 1] = True
    return CutRows(row, starts, stops, follows, reads, writes)


def _unsettled(rows: Rows[Row], pages: SequencePages) -> list[int]:
    """Rows that may be cut, in order. They were admitted lately, so they are the last as a rule."""
    found: list[int] = []
    for index in range(len(rows) - 1, -1, -1):
        if len(found) == len(pages.unsettled):
            break
        if rows[index].sequence.sequence_id in pages.unsettled:
            found.append(index)
    return found[::-1]
