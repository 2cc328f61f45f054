"""What this machine can do at most: bytes read a second, and bf16 operations a second."""

import statistics
import time
from collections.abc import Callable

import torch


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """The median duration of `run`, after one run to warm up."""
    run()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def read_bandwidth() -> float:
    """Bytes a second at which all threads together read memory that is in no cache."""
    numbers = torch.ones(2**27, dtype=torch.float32)  # 512 MiB
    return numbers.nbytes / median_seconds(numbers.sum, 7)


def matrix_rate() -> float:
    """bf16 multiply-adds a second, counted as two operations each, on a square product."""
    size = 2048
    a, b = (torch.randn(size, size).bfloat16() for _ in range(2))
    return 2 * size**3 / median_seconds(lambda: a @ b, 7)
