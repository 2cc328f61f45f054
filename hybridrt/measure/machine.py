"""What this machine is, and what it can do at most: the measures that floors are made of."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from hybridrt.kernels.linear import lay_out, linear
from hybridrt.measure.timing import median_seconds

_CPU_INFO = Path("/proc/cpuinfo")
_LONG = 0.1  # seconds of a product: the next one takes eight times as many


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that can be read a second, and operations of products a second (two a multiply-add)."""

    bytes_per_second: float
    operations_per_second: float

    def or_better(self, other: "Limits") -> "Limits":
        """The best that either measurement has seen."""
        return Limits(
            max(self.bytes_per_second, other.bytes_per_second),
            max(self.operations_per_second, other.operations_per_second),
        )


def describe() -> dict[str, Any]:
    """The processors, the threads of torch, and versions."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        **gpu,
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def measure_limits(device: torch.device, dtype: torch.dtype) -> Limits:
    """Both limits, with the threads that torch has now. Takes a few seconds."""
    return Limits(read_bandwidth(device), matrix_rate(device, dtype))


def read_bandwidth(device: torch.device) -> float:
    """Bytes a second at which all threads together read memory that is in no cache."""
    count = 2**30 if device.type == "cuda" else 2**27  # of 4 bytes
    numbers = torch.ones(count, dtype=torch.float32, device=device)
    return numbers.nbytes / _seconds(numbers.sum, 7, device)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of matrix products: the best of several square ones.

    Larger ones are left out where the last took long already.
    """
    rates: list[float] = []
    for size in (1024, 2048, 4096, 8192):
        product = square_product(size, device, dtype)
        seconds = min(_seconds(product, 3, device) for _ in range(2))
        rates.append(2 * size**3 / seconds)
        if seconds > (_LONG if size < 4096 else _LONG / 100):
            break
    return max(rates)


def _seconds(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    """The median duration of `run`: on CUDA the device's, whose host is ahead."""
    if device.type != "cuda":
        return median_seconds(run, repeats, device)
    run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize(device)
    return median(a.elapsed_time(b) for a, b in pairwise(events)) / 1000


def square_product(
    size: int, device: torch.device, dtype: torch.dtype
) -> Callable[[], torch.Tensor]:
    """A product of two square matrices, by the kernel that a layer of that size would take."""
    x, plain = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    weight = lay_out(plain)
    return lambda: linear(x, weight, None)


def _cpu() -> str:
    if not _CPU_INFO.is_file():
        return platform.processor() or platform.machine()
    lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
