"""Dot products of bfloat16, by pairs where the processor can, and widened."""

from typing import no_type_check

import numba
import pytest
import torch

from hybridrt.kernels.cpu.dot_bfloat16 import PAIRS, ROWS, VECTORS, make_dot
from hybridrt.kernels.cpu.vectors import MULTIPLIES_PAIRS

_WAYS = [False, True] if MULTIPLIES_PAIRS else [False]


@pytest.mark.parametrize("by_pairs", _WAYS, ids=lambda by_pairs: "pairs" if by_pairs else "widened")
@pytest.mark.parametrize("count", VECTORS)
def test_equals_the_products_in_float64(count: int, by_pairs: bool) -> None:
    dot = make_dot(count, by_pairs)

    @numba.njit
    @no_type_check
    def run(rows, row_bytes, vectors, size, sums, stride):
        dot(rows, row_bytes, vectors, size, sums, stride)

    torch.manual_seed(count)
    size, gap = 3 * PAIRS, 10
    matrix = torch.randn(ROWS, size + gap).bfloat16()
    vectors = torch.randn(count, size).bfloat16()
    places = torch.tensor([vector.data_ptr() for vector in vectors])
    sums = torch.full((count, ROWS + 1), torch.nan)
    run(matrix.data_ptr(), 2 * (size + gap), places.data_ptr(), size, sums.data_ptr(), ROWS + 1)
    exact = vectors.double() @ matrix[:, :size].double().T
    assert sums[:, ROWS].isnan().all()
    torch.testing.assert_close(sums[:, :ROWS].double(), exact, rtol=0, atol=1e-4)
