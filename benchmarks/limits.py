"""What a machine allows, measured in turns with what it is compared with.

A machine's memory may be twice as fast a minute later.
"""

import time
from collections.abc import Callable

import torch

from hybridrt.measure.machine import Limits, square_product
from hybridrt.measure.timing import Side, Spread

RUNS = 16
NUMBERS = 2**27  # 512 MiB of float32, which no cache holds
SIZE = 2048  # rows and columns of matrices


class Machine:
    """Its memory and its matrix products, as two more sides that take turns."""

    def __init__(self) -> None:
        self._numbers = torch.ones(NUMBERS)
        self._product = square_product(SIZE, torch.device("cpu"), torch.bfloat16)

    @property
    def sides(self) -> dict[str, Side]:
        """Runs of both."""
        return {"reading": self._read, "multiplying": self._multiply}

    def limits(self, spreads: dict[str, Spread]) -> Limits:
        """By the medians of these sides, which are taken out."""
        reading, multiplying = spreads.pop("reading"), spreads.pop("multiplying")
        return Limits(self._numbers.nbytes / reading.median, 2 * SIZE**3 / multiplying.median)

    def _read(self) -> list[float]:
        return [_seconds(self._numbers.sum) for _ in range(RUNS)]

    def _multiply(self) -> list[float]:
        return [_seconds(self._product) for _ in range(RUNS)]


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
