"""Joins what the pieces of a sequence gave, and writes results."""

from typing import no_type_check

import numpy as np

from hybridrt.kernels.cpu.attend_tile import NOTHING
from hybridrt.kernels.cpu.fast_exp import fast_exp
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.vector_math import fma, mul, splat
from hybridrt.kernels.cpu.vectors import LANES, load, pointer, store, store_some


@inner
@no_type_check
def write(sums, at, factor, out, place, size):  # pragma: no cover  (compiled, as all below)
    """A head's sums, times a factor, by pointers."""
    whole, factor = size // LANES * LANES, splat(factor)
    for d in range(0, whole, LANES):
        store(mul(load(sums, at + d), factor), out, place + d)
    if whole < size:
        store_some(mul(load(sums, at + whole), factor), out, place + whole, size - whole)


@inner
@no_type_check
def _join(apart, tops, totals, at, pieces, step, sums):  # pragma: no cover
    """A head's result of what its pieces gave, which stand `step` apart."""
    top = NOTHING
    for i in range(pieces):
        top = max(top, tops[at + i * step])
    total = np.float32(0)
    for i in range(pieces):
        total += totals[at + i * step] * fast_exp(tops[at + i * step] - top)
    sums[:] = 0
    parts, joined = pointer(apart), pointer(sums)
    for i in range(pieces):
        share = splat(fast_exp(tops[at + i * step] - top) / total)
        part = (at + i * step) * len(sums)
        for d in range(0, len(sums), LANES):
            store(fma(share, load(parts, part + d), load(joined, d)), joined, d)


@inner
@no_type_check
def join_rows(
    worker, workers, heads, size, pieces, apart_rows, apart, tops, totals, out
):  # fmt: skip  # pragma: no cover
    """The heads whose turn it is of every row in pieces."""
    joined = np.empty((size + LANES - 1) // LANES * LANES, np.float32)
    of_joined, results = pointer(joined), pointer(out)
    for row in range(len(pieces)):
        for head in range(worker, heads if pieces[row] > 1 else 0, workers):
            at = apart_rows[row] + head
            _join(apart, tops, totals, at, pieces[row], heads, joined)
            write(of_joined, 0, np.float32(1), results, (row * heads + head) * size, size)
