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
from jaxtyping import Bool, Int64

from hybridrt.cache.reuse import StateCopies
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.engine.scheduler import Row


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
    reads: Mapping[int, StateCopies]
    writes: Mapping[int, StateCopies]

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
        ids = own[self.row]
        for piece, others in (self.reads if initial else self.writes).items():
            ids[piece] = others[group]
        return np.ascontiguousarray(ids.T)


def cut_rows(rows: Rows[Row], pages: SequencePages) -> CutRows:
    """All rows in pieces."""
    row_of = [*range(len(rows))]
    starts, stops = [row.start for row in rows], [row.stop for row in rows]
    follows: list[int] = []
    reads: dict[int, StateCopies] = {}
    writes: dict[int, StateCopies] = {}
    cut = 0  # pieces so far beyond one a row
    for index, (sequence, start, stop) in enumerate(rows):
        if sequence.sequence_id not in pages.unsettled:
            continue
        piece = index + cut
        initial = pages.initial_states(sequence.sequence_id)
        if initial is not None:
            reads[piece] = initial
        for position, exported in pages.exports(sequence.sequence_id, start, stop):
            writes[piece] = reads[piece + 1] = exported
            row_of.insert(piece, index)
            stops.insert(piece, position)
            starts.insert(piece + 1, position)
            follows.append(piece := piece + 1)
        cut = piece - index
    is_following = np.zeros(len(row_of), np.bool_)
    is_following[follows] = True
    return CutRows(
        np.array(row_of, np.int64),
        np.array(starts, np.int64),
        np.array(stops, np.int64),
        is_following,
        reads,
        writes,
    )
