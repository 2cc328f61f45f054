"""Sums and products of bfloat16 in numba: the same numbers as torch's, by a shorter call."""

from typing import no_type_check

import numba
import numpy as np
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, narrow, widen
from hybridrt.kernels.cpu.jit import FEW, inner, kernel, parallel_kernel

Numbers = BFloat16[Tensor, "*shape"]


def add(x: Numbers, y: Numbers, out: Numbers, scale: float = 1.0) -> None:
    """Writes `x + scale * y` to `out`, all without gaps."""
    run = _add_few if x.numel() <= FEW else _add_many
    run(x.data_ptr(), y.data_ptr(), out.data_ptr(), x.numel(), float(scale))


def multiply(x: Numbers, y: Numbers, out: Numbers) -> None:
    """Writes `x * y` to `out`, all without gaps."""
    run = _multiply_few if x.numel() <= FEW else _multiply_many
    run(x.data_ptr(), y.data_ptr(), out.data_ptr(), x.numel())


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
def _multiply_part(x, y, out, begin, end):  # pragma: no cover
    size = end - begin
    given, more = halves(x + 2 * begin, size), halves(y + 2 * begin, size)
    products = halves(out + 2 * begin, size)
    for i in range(size):
        products[i] = narrow(widen(given[i]) * widen(more[i]))


@kernel
@no_type_check
def _add_few(x, y, out, size, scale):  # pragma: no cover
    add_part(x, y, out, 0, size, scale)


@parallel_kernel
@no_type_check
def _add_many(x, y, out, size, scale):  # pragma: no cover
    for part in numba.prange((size + FEW - 1) // FEW):
        begin = np.int64(part) * FEW
        add_part(x, y, out, begin, min(begin + FEW, size), scale)


@kernel
@no_type_check
def _multiply_few(x, y, out, size):  # pragma: no cover
    _multiply_part(x, y, out, 0, size)


@parallel_kernel
@no_type_check
def _multiply_many(x, y, out, size):  # pragma: no cover
    for part in numba.prange((size + FEW - 1) // FEW):
        begin = np.int64(part) * FEW
        _multiply_part(x, y, out, begin, min(begin + FEW, size))
