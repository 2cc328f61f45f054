"""What this machine can do at most: bytes read a second, and bf16 operations a second."""

import statistics
import time
from collections.abc import Callable

import torch

from hybridrt.kernels.linear import linear, pack_weight


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
    """bf16 operations a second, two for a multiply-add: the best of several square products."""
    rates: list[float] = []
    for size in (1024, 2048, 4096):
        x = torch.randn(size, size).bfloat16()
        weight = pack_weight(torch.randn(size, size).bfloat16())
        seconds = min(median_seconds(lambda: linear(x, weight, None), 3) for _ in range(3))  # noqa: B023
        rates.append(2 * size**3 / seconds)
    return max(rates)
