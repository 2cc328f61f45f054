"""Samples of a time: their median and quartiles, and sides that take turns."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from statistics import median, quantiles

import torch


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of samples and the quartiles around it, in seconds, and how many runs they are of.

    A run may give several samples, such as its steps.
    """

    median: float
    lower: float
    upper: float
    runs: int

    @classmethod
    def of(cls, samples: Sequence[float], runs: int) -> "Spread":
        """Of at least one sample."""
        quartiles = quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples
        return cls(median(samples), quartiles[0], quartiles[-1], runs)


Side = Callable[[], Sequence[float]]
"""One run of something; the seconds that it gives."""


def take_turns(sides: Mapping[str, Side], repeats: int, patience: float = inf) -> dict[str, Spread]:
    """Runs the sides in turns, so that a busy moment of the machine meets all of them.

    The first run of each is to warm up. Where it took longer than `patience` seconds it is
    counted instead, and the side is left out of all further turns.
    """
    samples: dict[str, list[float]] = {name: [] for name in sides}
    turns = list(sides)
    for name in list(turns):
        start = time.perf_counter()
        first = sides[name]()
        if time.perf_counter() - start > patience:
            samples[name] += first
            turns.remove(name)
    for _ in range(repeats):
        for name in turns:
            samples[name] += sides[name]()
    runs = {name: repeats if name in turns else 1 for name in sides}
    return {name: Spread.of(found, runs[name]) for name, found in samples.items()}


def median_seconds(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    """The median duration of `run`, behind one run to warm up."""

    def timed() -> list[float]:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return [time.perf_counter() - start]

    return take_turns({"": timed}, repeats)[""].median


@contextmanager
def collector_off() -> Iterator[None]:
    """No collection of garbage falls into a time: one may take longer than a step."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
