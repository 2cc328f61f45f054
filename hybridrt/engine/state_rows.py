"""The rows of a step as state groups have them: cut where a state is to be kept.

A chunk of a prompt that passes positions at which states are exported becomes several rows,
each of which leaves its state in the pages of an export and the last in the sequence's own.
A sequence that begins at a checkpoint reads its first state from there. Nothing is copied,
and no token is computed in a step of its own.
"""

from collections.abc import Sequence as Rows
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from hybridrt.cache.page_table import PageTable, PhysicalId
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.engine.scheduler import Row


class Piece(NamedTuple):
    """Tokens `start` to `stop - 1` of row `row`, and the state pages of each group.

    `reads` and `writes` are None where they are the sequence's own.
    """

    row: int
    start: int
    stop: int
    reads: dict[int, list[PhysicalId]] | None
    writes: dict[int, list[PhysicalId]] | None
    follows: bool

    @property
    def is_decode(self) -> bool:
        """One token that goes on from the sequence's own state, and leaves it there."""
        own = self.reads is None and self.writes is None
        return own and self.stop - self.start == 1 and self.start > 0


def cut_rows(rows: Rows[Row], pages: SequencePages) -> list[Piece]:
    """All rows in pieces, in their order."""
    pieces: list[Piece] = []
    for index, (sequence, start, stop) in enumerate(rows):
        name, follows = sequence.sequence_id, False
        if name not in pages.unsettled:
            pieces.append(Piece(index, start, stop, None, None, False))
            continue
        reads = pages.initial_states(name)
        for position, exported in pages.exports(name, start, stop):
            pieces.append(Piece(index, start, position, reads, exported, follows))
            start, reads, follows = position, exported, True
        pieces.append(Piece(index, start, stop, reads, None, follows))
    return pieces


def state_pages(
    pieces: Rows[Piece], group: int, tables: Rows[PageTable], *, initial: bool
) -> Int64[np.ndarray, "parts pieces"]:
    """The pages that each piece's states are read from, with `initial`, or left in."""
    ids: list[list[PhysicalId]] = []
    for piece in pieces:
        others = piece.reads if initial else piece.writes
        ids.append(tables[piece.row].physical_ids if others is None else others[group])
    return np.ascontiguousarray(np.array(ids, np.int64).T)
