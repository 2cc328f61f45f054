"""Copies in numba: the same as torch's, by a shorter call."""

from typing import no_type_check

import numba
import numpy as np
from jaxtyping import BFloat16, Float32, Int64, Shaped
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, integers, octets, singles
from hybridrt.kernels.cpu.bfloat16 import widen as widened
from hybridrt.kernels.cpu.jit import FEW, inner, kernel, parallel_kernel


def widen(x: BFloat16[Tensor, "*shape"], out: Float32[Tensor, "*shape"]) -> None:
    """Writes `x` to `out`, both without gaps."""
    run = _widen_few if x.numel() <= FEW else _widen_many
    run(x.data_ptr(), out.data_ptr(), x.numel())


def copy_rows(x: Shaped[Tensor, "runs rows size"], out: Shaped[Tensor, "runs rows size"]) -> None:
    """Writes rows of any dtype, each of them without gaps."""
    size, (runs, rows, numbers) = x.element_size(), x.shape
    of_x = x.data_ptr(), x.stride(0) * size, x.stride(1) * size
    of_out = out.data_ptr(), out.stride(0) * size, out.stride(1) * size
    _copy_rows(*of_x, *of_out, runs, rows, numbers * size)


def take_rows(
    table: Shaped[Tensor, "rows size"],
    numbers: Int64[Tensor, "*shape"],
    out: Shaped[Tensor, "*shape size"],
) -> None:
    """Writes the rows of those numbers, of any dtype; nothing has gaps.

    In a tape, a number that no row has is an error of its replay.
    """
    row_bytes = table.shape[1] * table.element_size()
    args = table.data_ptr(), table.shape[0], row_bytes, numbers.data_ptr(), numbers.numel()
    _take_rows(*args, out.data_ptr())


@inner
@no_type_check
def _copy(given, into, size):  # pragma: no cover  (compiled, as all below)
    octets(into, size)[:] = octets(given, size)


@inner
@no_type_check
def _widen(x, out, begin, end):  # pragma: no cover
    given, result = halves(x + 2 * begin, end - begin), singles(out + 4 * begin, end - begin)
    for i in range(end - begin):
        result[i] = widened(given[i])


@kernel
@no_type_check
def _widen_few(x, out, size):  # pragma: no cover
    _widen(x, out, 0, size)


@parallel_kernel
@no_type_check
def _widen_many(x, out, size):  # pragma: no cover
    for part in numba.prange((size + FEW - 1) // FEW):
        begin = np.int64(part) * FEW
        _widen(x, out, begin, min(begin + FEW, size))


@kernel
@no_type_check
def _copy_rows(
    x, x_run, x_row, out, out_run, out_row, runs, rows, size
):  # fmt: skip  # pragma: no cover
    for run in range(runs):
        for row in range(rows):
            given = x + run * x_run + row * x_row
            _copy(given, out + run * out_run + row * out_row, size)


@kernel
@no_type_check
def _take_rows(table, rows, size, numbers, count, out):  # pragma: no cover
    number_of = integers(numbers, count)
    for n in range(count):
        if number_of[n] < 0 or number_of[n] >= rows:
            return False
        _copy(table + number_of[n] * size, out + n * size, size)
    return True
