"""Copies in numba: the same as torch's, by a shorter call."""

from typing import no_type_check

import numpy as np
from jaxtyping import BFloat16, Float32, Int32, Int64, Shaped
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import copy_bytes, halves, integers, short_integers, singles
from hybridrt.kernels.cpu.bfloat16 import widen as widened
from hybridrt.kernels.cpu.jit import inner, kernel
from hybridrt.kernels.cpu.share import jobs_of, numbers_of, parallel_kernel, share, threads_for


def widen(x: BFloat16[Tensor, "*shape"], out: Float32[Tensor, "*shape"]) -> None:
    """Writes `x` to `out`, both without gaps."""
    _widen_all(threads_for(x.numel()), x.data_ptr(), out.data_ptr(), x.numel())


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


def take_tokens(
    pages: Shaped[Tensor, "blocks block_size size"],
    table: Int32[Tensor, " row_blocks"],
    place: int,
    out: Shaped[Tensor, "tokens size"],
) -> None:
    """Writes the tokens from a `place` in the blocks of `table` on; no token has gaps."""
    size, (tokens, numbers) = pages.element_size(), out.shape
    _take_tokens(
        threads_for(out.numel()),
        *(pages.data_ptr(), pages.stride(0) * size, pages.stride(1) * size, pages.shape[1]),
        *(table.data_ptr(), place, tokens, numbers * size, out.data_ptr()),
    )


@inner
@no_type_check
def _widen(worker, workers, x, out, size):  # pragma: no cover
    begin, end = numbers_of(worker, workers, size)
    given, result = halves(x + 2 * begin, end - begin), singles(out + 4 * begin, end - begin)
    for i in range(end - begin):
        result[i] = widened(given[i])


@parallel_kernel
@no_type_check
def _widen_all(threads, x, out, size):  # pragma: no cover
    share(_widen, threads, (x, out, size))


@kernel
@no_type_check
def _copy_rows(
    x, x_run, x_row, out, out_run, out_row, runs, rows, size
):  # fmt: skip  # pragma: no cover
    for run in range(runs):
        for row in range(rows):
            given = x + run * x_run + row * x_row
            copy_bytes(given, out + run * out_run + row * out_row, size)


@kernel
@no_type_check
def _take_rows(table, rows, size, numbers, count, out):  # pragma: no cover
    number_of = integers(numbers, count)
    for n in range(count):
        if number_of[n] < 0 or number_of[n] >= rows:
            return False
        copy_bytes(table + number_of[n] * size, out + n * size, size)
    return True


@inner
@no_type_check
def _take_share(
    worker, workers, pages, block, token, block_size, table, place, tokens, size, out
):  # fmt: skip  # pragma: no cover
    first, last = jobs_of(worker, workers, tokens)
    end = place + last
    blocks = short_integers(table, (end + block_size - 1) // block_size)
    for n in range(first, last):
        at = np.int64(blocks[(place + n) // block_size]) * block
        copy_bytes(pages + at + (place + n) % block_size * token, out + n * size, size)


@parallel_kernel
@no_type_check
def _take_tokens(
    threads, pages, block, token, block_size, table, place, tokens, size, out
):  # fmt: skip  # pragma: no cover
    share(_take_share, threads, (pages, block, token, block_size, table, place, tokens, size, out))
