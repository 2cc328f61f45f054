"""What looks on while a sequence is computed; see `Engine.recording`."""

from collections.abc import Callable, Sequence
from typing import Protocol

from hybridrt.engine.runner import RowResult
from hybridrt.engine.scheduler import Row

MOST_TAPS = 128  # positions inside a step: bounds the pages that their states take


class Recorder(Protocol):
    """Looks on while one sequence is computed."""

    @property
    def sequence_id(self) -> str:
        """Whose tokens it is about."""
        ...

    def positions_inside(self, start: int, stop: int) -> list[int]:
        """Positions between these two, in order, whose states it wants to see."""
        ...

    def run(
        self, rows: list[Row], run: Callable[[list[Row]], Sequence[RowResult]]
    ) -> Sequence[RowResult]:
        """Runs a step with the sequence among the rows, and looks at what it leaves."""
        ...
