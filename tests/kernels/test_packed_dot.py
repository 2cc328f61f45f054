"""Products of a block's pairs, in every way that processors differ in: the same bits."""

from typing import Any

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.cpu.packed_dot import (
    MOST_IN_HALVES,
    MOST_VECTORS,
    OUTPUTS,
    make_packed_dot,
    room_for_inputs,
    widen_block,
)
from hybridrt.kernels.cpu.vectors import MULTIPLIES_PAIRS
from tests.harness.properties import bounded

COUNTS = sorted({1, 2, 3, MOST_VECTORS, MOST_IN_HALVES})


def _make(by_pairs: bool, widened: bool, in_parts: bool) -> Any:
    dot = make_packed_dot(COUNTS, 4, by_pairs, widened, in_parts)

    @numba.njit
    def run(count: int, *args: int) -> None:
        dot(count, room_for_inputs(), *args)

    return run


_WAYS = [(False, widened, in_parts) for widened in (False, True) for in_parts in (False, True)]
if MULTIPLIES_PAIRS:
    _WAYS.append((True, False, False))
_RUNS = {way: _make(*way) for way in _WAYS}


@numba.njit
def _widen(*args: int) -> None:
    widen_block(*args)


def _multiply(
    block: Tensor, x: Tensor, sums: Tensor, by_pairs: bool, widened: bool, in_parts: bool = False
) -> Tensor:
    pairs, out = x.shape[1] // 2, sums.clone()
    if widened:
        wide = torch.full((pairs, 2, OUTPUTS), torch.nan)
        _widen(block.data_ptr(), pairs, wide.data_ptr())
        block = wide
    args = x.data_ptr(), 2 * x.stride(0), pairs, out.data_ptr(), block.data_ptr(), 4 * OUTPUTS
    _RUNS[by_pairs, widened, in_parts](len(x), block.data_ptr(), *args)
    return out


@bounded(60)
@given(pairs=st.integers(1, 150), count=st.sampled_from(COUNTS), seed=st.integers(0, 99))
def test_is_the_product_with_the_same_bits_in_every_way(pairs: int, count: int, seed: int) -> None:
    torch.manual_seed(seed)
    block = torch.randn(pairs, OUTPUTS, 2).bfloat16()
    # What lies behind a vector in memory is not its own.
    x = torch.cat([torch.randn(count, 2 * pairs), torch.full((count, 40), torch.nan)], 1)
    x, sums = x.bfloat16()[:, : 2 * pairs], torch.randn(count, OUTPUTS)
    found = [_multiply(block, x, sums, *way) for way in _RUNS]
    weight = block.transpose(0, 1).flatten(1).double()
    parts = sums.double().abs() + x.double().abs() @ weight.abs().T
    assert ((found[0] - (sums.double() + x.double() @ weight.T)).abs() <= 1e-6 * parts).all()
    assert all(torch.equal(other, found[0]) for other in found[1:])


@pytest.mark.parametrize("widened", [False, True])
def test_nan_and_infinity_stay_in_their_rows(widened: bool) -> None:
    block, x = torch.randn(40, OUTPUTS, 2).bfloat16(), torch.randn(3, 80).bfloat16()
    sums = torch.zeros(3, OUTPUTS)
    clean = _multiply(block, x, sums, False, widened)
    x[1, 7] = torch.nan
    spoilt = _multiply(block, x, sums, False, widened)
    assert torch.equal(spoilt[[0, 2]], clean[[0, 2]]) and spoilt[1].isnan().all()
