"""Where a recording has come to: positions, and means over the tokens between two of them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor


class Run(NamedTuple):
    """New tokens `start` to `stop - 1` of a sequence, none of which is beyond `position`, the
    next that is recorded.
    """

    start: int
    stop: int
    position: int


def runs_between(start: int, stop: int, positions: Sequence[int]) -> list[Run]:
    """The tokens `start` to `stop - 1`, cut at these positions, in order."""
    runs: list[Run] = []
    for position in positions:
        if position > start:
            runs.append(Run(start, min(position, stop), position))
            start = min(position, stop)
        if start == stop:
            break
    return runs


class IntervalMeans:
    """Means over the tokens of an interval, of which a step may bring a part only."""

    def __init__(self) -> None:
        self._sums: tuple[Tensor, ...] | None = None
        self._count = 0

    def add(
        self, runs: Sequence[Run], sums: Callable[[int, int], tuple[Tensor, ...]]
    ) -> dict[int, tuple[Tensor, ...]]:
        """Takes in a step's tokens, and gives the means of the intervals that end with it.

        `sums(start, stop)` are those over some of its tokens.
        """
        means: dict[int, tuple[Tensor, ...]] = {}
        for run in runs:
            found = sums(run.start, run.stop)
            if self._sums is not None:
                found = tuple(a + b for a, b in zip(self._sums, found, strict=True))
            self._sums, self._count = found, self._count + run.stop - run.start
            if run.stop == run.position:
                means[run.position] = tuple(one / self._count for one in found)
                self._sums, self._count = None, 0
        return means
