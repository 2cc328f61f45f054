"""Tiles of bfloat16 by the instruction that multiplies pairs.

It is tried wherever a processor has it; attention uses it where it is the faster way.
"""

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.cpu.attend_tile import TILE
from hybridrt.kernels.cpu.pair_order import PAIRS
from hybridrt.kernels.cpu.pair_tile import (
    OF_MULTIPLIED,
    Multiplied,
    make_add_values,
    make_score,
)
from hybridrt.kernels.cpu.vectors import MULTIPLIES_PAIRS
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close

pytestmark = pytest.mark.skipif(not MULTIPLIES_PAIRS, reason="no instruction for pairs")

HEADS = st.integers(1, len(OF_MULTIPLIED))
_score, _add_values = make_score(Multiplied), make_add_values(Multiplied)


@numba.njit
def _run_score(heads, q, q_bytes, keys, places, size, more, more_places, more_size, scores):
    _score(heads, q, q_bytes, keys, places, size, more, more_places, more_size, 0, 0, scores)


@numba.njit
def _run_add_values(
    heads, numbers, weights, kept, values, places, count, sums, sum_bytes
):  # fmt: skip
    _add_values(heads, numbers, weights, kept, values, places, count, 0, 0, sums, sum_bytes)


def _drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def _scattered(rows: Tensor) -> tuple[Tensor, np.ndarray]:
    """Rows between NaN, and where each begins."""
    count, size = rows.shape
    memory = torch.full((count, size + 3), torch.nan, dtype=rows.dtype)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    memory[order, 1:-2] = rows
    return memory, (order.numpy() * (size + 3) + 1).astype(np.int64)


def _lines(size: int) -> int:
    return -(-size // PAIRS) * PAIRS


@bounded(60)
@given(heads=HEADS, size=st.integers(1, 100), more=st.integers(0, 70), seed=st.integers(0, 99))
def test_scores_are_products(heads: int, size: int, more: int, seed: int) -> None:
    tokens, width = OF_MULTIPLIED[heads - 1], _lines(size) + _lines(more)
    q, keys = _drawn(seed, heads, size + more), _drawn(seed + 1, tokens, size + more)
    rows = torch.zeros(heads, width, dtype=torch.bfloat16)
    rows[:, :size] = q[:, :size]
    rows[:, _lines(size) : _lines(size) + more] = q[:, size:]
    (first, places), (second, more_places) = _scattered(keys[:, :size]), _scattered(keys[:, size:])
    scores = torch.full((heads, TILE), torch.nan)
    _run_score(
        heads, rows.data_ptr(), 2 * width, first.data_ptr(), places.ctypes.data, size,
        second.data_ptr(), more_places.ctypes.data, more, scores.data_ptr(),
    )  # fmt: skip
    assert_close(scores[:, :tokens], q.double() @ keys.double().T)
    assert scores[:, tokens:].isnan().all()


@bounded(60)
@given(
    heads=HEADS,
    numbers=st.integers(1, 2 * PAIRS),
    count=st.integers(1, TILE),
    seed=st.integers(0, 99),
)
def test_values_are_weighted_and_added(heads: int, numbers: int, count: int, seed: int) -> None:
    numbers = 2 * PAIRS if numbers > PAIRS else numbers
    weights, values = _drawn(seed, heads, count), _drawn(seed + 1, count, numbers)
    rows = torch.full((heads, 2 * TILE), torch.nan, dtype=torch.bfloat16)
    rows[:, :count], rows[:, count : count + count % 2] = weights, 0
    memory, places = _scattered(values)
    places = np.append(places, places[-1])
    kept, sums = torch.rand(heads), torch.randn(heads, _lines(numbers))
    split = sums.view(heads, -1, 2, PAIRS // 2)  # the first of each pair before the others
    before = split.transpose(2, 3).reshape(heads, -1).clone()
    _run_add_values(
        heads, numbers, rows.data_ptr(), kept.data_ptr(), memory.data_ptr(), places.ctypes.data,
        count, sums.data_ptr(), 4 * sums.shape[1],
    )  # fmt: skip
    exact = kept[:, None].double() * before.double()
    exact[:, :numbers] += weights.double() @ values.double()
    assert_close(split.transpose(2, 3).reshape(heads, -1), exact)
