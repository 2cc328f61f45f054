"""Sums and products of bfloat16 in numba: the same numbers as torch's, by a shorter call."""

from typing import no_type_check

import numpy as np
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, narrow, widen
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.share import numbers_of, parallel_kernel, share, threads_for

Numbers = BFloat16[Tensor, "*shape"]


def add(x: Numbers, y: Numbers, out: Numbers, scale: float = 1.0) -> None:
    """Writes `x + scale * y` to `out`, all without gaps."""
    numbers = x.numel()
    _add(threads_for(numbers), x.data_ptr(), y.data_ptr(), out.data_ptr(), numbers, float(scale))


def multiply(x: Numbers, y: Numbers, out: Numbers) -> None:
    """Writes `x * y` to `out`, all without gaps."""
    numbers = x.numel()
    _multiply(threads_for(numbers), x.data_ptr(), y.data_ptr(), out.data_ptr(), numbers)


@inner
@no_type_check
def add_part(x, y, out, begin, end, scale):  # pragma: no cover  (compiled, as all below)
    """Writes the sums of the elements from `begin` to `end`."""
    size, factor = end - begin, np.float32(scale)
    given, more = halves(x + 2 * begin, size), halves(y + 2 * begin, size)
    sums = halves(out + 2 * begin, size)
    if scale == 1.0:
        for i in range(size):
            sums[i] = narrow(widen(given[i]) + widen(more[i]))
    else:
        for i in range(size):
            scaled = narrow(widen(more[i]) * factor)
            sums[i] = narrow(widen(given[i]) + widen(scaled))


@inner
@no_type_check
def _add_share(worker, workers, x, y, out, size, scale):  # pragma: no cover
    begin, end = numbers_of(worker, workers, size)
    add_part(x, y, out, begin, end, scale)


@parallel_kernel
@no_type_check
def _add(threads, x, y, out, size, scale):  # pragma: no cover
    share(_add_share, threads, (x, y, out, size, scale))


@inner
@no_type_check
def _multiply_share(worker, workers, x, y, out, numbers):  # pragma: no cover
    begin, end = numbers_of(worker, workers, numbers)
    size = end - begin
    given, more = halves(x + 2 * begin, size), halves(y + 2 * begin, size)
    products = halves(out + 2 * begin, size)
    for i in range(size):
        products[i] = narrow(widen(given[i]) * widen(more[i]))


@parallel_kernel
@no_type_check
def _multiply(threads, x, y, out, size):  # pragma: no cover
    share(_multiply_share, threads, (x, y, out, size))
