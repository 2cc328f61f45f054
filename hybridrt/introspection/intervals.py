"""Where a recording has come to: positions, and means over the tokens between two of them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
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
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, runs: Sequence[Run], sum_of: Callable[[int, int], Tensor]) -> Tensor | None:
        """Takes in a step's tokens, and gives the means of the intervals that end in it, in order.

        `sum_of(start, stop)` is that over some of its tokens. None: no interval ends.
        """
        sums: list[Tensor] = []
        counts: list[int] = []
        for run in runs:
            found = sum_of(run.start, run.stop)
            self._sum = found if self._sum is None else self._sum + found
            self._count += run.stop - run.start
            if run.stop == run.position:
                sums.append(self._sum)
                counts.append(self._count)
                self._sum, self._count = None, 0
        if not sums:
            return None
        stacked = torch.stack(sums)
        divisors = torch.tensor(counts, device=stacked.device)
        return stacked / divisors.view(-1, *[1] * (stacked.dim() - 1))
