"""Tiles of bfloat16 in each of their forms, wherever a processor can do it.

Attention uses the one that is fastest there.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

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
    MOST_SUMMED,
    Multiplied,
    Tile,
    Widened,
    make_add_values,
    make_score,
)
from hybridrt.kernels.cpu.pair_tile_halves import WidenedByHalves
from hybridrt.kernels.cpu.vectors import MULTIPLIES_PAIRS
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close

_needs_pairs = pytest.mark.skipif(not MULTIPLIES_PAIRS, reason="no instruction for pairs")
of_each_form = pytest.mark.parametrize(
    "form", [pytest.param(Multiplied, marks=_needs_pairs), Widened, WidenedByHalves]
)


@cache
def _run_score(form: type[Tile]) -> Callable[..., None]:
    score: Any = make_score(form)

    @numba.njit
    def run(heads, q, q_bytes, keys, places, size, more, more_places, more_size, scores):
        score(heads, q, q_bytes, keys, places, size, more, more_places, more_size, 0, 0, scores)

    return run


@cache
def _run_add_values(form: type[Tile]) -> Callable[..., None]:
    add: Any = make_add_values(form)

    @numba.njit
    def run(heads, numbers, weights, kept, values, places, count, sums, sum_bytes):
        add(heads, numbers, weights, kept, values, places, count, 0, 0, sums, sum_bytes)

    return run


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


def _split(rows: Tensor) -> Tensor:
    """The first of each pair of a line before the others, or as many of them side by side again."""
    return rows.unflatten(1, (-1, PAIRS // 2, 2)).transpose(2, 3).flatten(1).contiguous()


def _joined(rows: Tensor) -> Tensor:
    return rows.unflatten(1, (-1, 2, PAIRS // 2)).transpose(2, 3).flatten(1)


@of_each_form
@bounded(60)
@given(data=st.data(), size=st.integers(1, 100), more=st.integers(0, 70), seed=st.integers(0, 99))
def test_scores_are_products(
    form: type[Tile], data: st.DataObject, size: int, more: int, seed: int
) -> None:
    heads = data.draw(st.integers(1, len(form.tokens)), "heads")
    tokens, width = form.tokens[heads - 1], _lines(size) + _lines(more)
    q, keys = _drawn(seed, heads, size + more), _drawn(seed + 1, tokens, size + more)
    rows = torch.zeros(heads, width, dtype=torch.bfloat16)
    rows[:, :size] = q[:, :size]
    rows[:, _lines(size) : _lines(size) + more] = q[:, size:]
    rows = rows if form is Multiplied else _split(rows.float())
    (first, places), (second, more_places) = _scattered(keys[:, :size]), _scattered(keys[:, size:])
    scores = torch.full((heads, TILE), torch.nan)
    _run_score(form)(
        heads, rows.data_ptr(), rows.itemsize * width, first.data_ptr(), places.ctypes.data, size,
        second.data_ptr(), more_places.ctypes.data, more, scores.data_ptr(),
    )  # fmt: skip
    assert_close(scores[:, :tokens], q.double() @ keys.double().T)
    assert scores[:, tokens:].isnan().all()


@of_each_form
@bounded(60)
@given(
    heads=st.integers(1, MOST_SUMMED),
    numbers=st.integers(1, 2 * PAIRS),
    count=st.integers(1, TILE),
    seed=st.integers(0, 99),
)
def test_values_are_weighted_and_added(
    form: type[Tile], heads: int, numbers: int, count: int, seed: int
) -> None:
    if numbers > PAIRS:
        numbers = PAIRS if form is WidenedByHalves and heads > 1 else 2 * PAIRS
    weights, values = _drawn(seed, heads, count), _drawn(seed + 1, count, numbers)
    rows = torch.full((heads, 2 * TILE), torch.nan, dtype=torch.bfloat16)
    rows[:, :count], rows[:, count : count + count % 2] = weights, 0
    rows = rows if form is Multiplied else rows[:, :TILE].float().contiguous()
    memory, places = _scattered(values)
    places = np.append(places, places[-1])
    kept, before = torch.rand(heads), torch.randn(heads, _lines(numbers))
    sums = _split(before)
    _run_add_values(form)(
        heads, numbers, rows.data_ptr(), kept.data_ptr(), memory.data_ptr(), places.ctypes.data,
        count, sums.data_ptr(), 4 * sums.shape[1],
    )  # fmt: skip
    exact = kept[:, None].double() * before.double()
    exact[:, :numbers] += weights.double() @ values.double()
    assert_close(_joined(sums), exact)
