"""Products by AMX: the same sums as of pairs, each as it is alone."""

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.cpu.jit import calls, kernel
from hybridrt.kernels.cpu.one_vector import STEP, multiply_one
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.packed_linear import add_products
from hybridrt.kernels.cpu.pairs import store_in_pairs
from hybridrt.kernels.cpu.tile_registers import (
    ROWS,
    RUNS,
    multiplies_tiles,
    release_tiles,
    take_tiles,
)
from hybridrt.kernels.cpu.tiles import add_by_tiles, add_near, multiply_rows, multiply_runs
from hybridrt.kernels.cpu.vectors import HAS_VECTORS, LANES, load, pointer
from tests.harness.properties import bounded

needs_tiles = pytest.mark.skipif(not multiplies_tiles(), reason="the processor has no AMX")


@numba.njit
def run_tiles(*args: int) -> None:
    tiles = take_tiles(True)
    add_by_tiles(tiles, *args)
    release_tiles(tiles)


@numba.njit
def run_near(*args: int) -> None:
    tiles = take_tiles(True)
    add_near(tiles, *args)
    release_tiles(tiles)


@kernel
@calls(add_products)
def run_either(are_there: bool, *args: int) -> None:
    tiles = take_tiles(are_there)
    add_products(tiles, *args)
    release_tiles(tiles)


def blocks_of(weight: Tensor, width: int) -> Tensor:
    """`[blocks, inputs / 2, width]` of pairs, as packed weights lie."""
    pairs = weight.view(torch.int32).view(OUTPUTS // width, width, -1)
    return pairs.transpose(1, 2).contiguous()


def multiply(
    weight: Tensor, x: Tensor, sums: Tensor, width: int, ahead: str, anew: bool = False
) -> Tensor:
    """`sums`, unless `anew`, and the products, by tiles; behind them nothing may be written."""
    blocks, guard = blocks_of(weight, width), torch.full((1, OUTPUTS), 7.0)
    out, inputs = torch.cat([sums, guard]), x.shape[1]
    half = 2 * OUTPUTS if width == OUTPUTS else 4 * width * inputs // 2
    following = {"on": blocks.data_ptr() + blocks.nbytes, "back": blocks.data_ptr(), "none": 0}
    run_tiles(
        *(anew, blocks.data_ptr(), 4 * width, half, x.data_ptr(), 2 * inputs, inputs // 2),
        *(out.data_ptr(), len(x), following[ahead]),
    )
    assert torch.equal(out[-1:], guard)
    return out[:-1]


@needs_tiles
@bounded(100)
@given(
    pairs=st.one_of(st.integers(1, 80), st.sampled_from([128, 256, 300])),
    tokens=st.integers(1, 130),
    width=st.sampled_from([OUTPUTS, OUTPUTS // 2]),
    ahead=st.sampled_from(["on", "back", "none"]),
    seed=st.integers(0, 99),
)
def test_is_the_product(pairs: int, tokens: int, width: int, ahead: str, seed: int) -> None:
    torch.manual_seed(seed)
    weight, x = (
        torch.randn(OUTPUTS, 2 * pairs).bfloat16(),
        torch.randn(tokens, 2 * pairs).bfloat16(),
    )
    sums = torch.randn(tokens, OUTPUTS)
    found = multiply(weight, x, sums, width, ahead)
    of_zeros = multiply(weight, x, torch.zeros_like(sums), width, ahead)
    spoilt = torch.full_like(sums, float("nan"))
    assert torch.equal(multiply(weight, x, spoilt, width, ahead, anew=True), of_zeros)
    exact = sums.double() + x.double() @ weight.double().T
    parts = sums.double().abs() + x.double().abs() @ weight.double().abs().T
    assert ((found - exact).abs() <= 1e-6 * parts).all()
    alone = torch.cat(
        [multiply(weight, x[t : t + 1], sums[t : t + 1], width, ahead) for t in (0, tokens - 1)]
    )
    assert torch.equal(alone, found[[0, -1]])
    if width == OUTPUTS:
        blocks, guard = blocks_of(weight, width), torch.full((1, OUTPUTS), 7.0)
        for anew, begin, expected in ((False, sums, found), (True, spoilt, of_zeros)):
            near = torch.cat([begin, guard])
            places = blocks.data_ptr(), x.data_ptr(), 4 * pairs, pairs, near.data_ptr(), tokens
            run_near(anew, *places)
            assert torch.equal(near, torch.cat([expected, guard]))


@numba.njit
def run_one(*args: int) -> None:
    multiply_one(*args)


@pytest.mark.parametrize("pairs", [1, STEP, 2 * STEP + 3])
def test_one_vector_is_added_in_the_order_of_amx(pairs: int) -> None:
    torch.manual_seed(pairs)
    weight = torch.randn(OUTPUTS, 2 * pairs).bfloat16()
    x = torch.randn(2 * pairs).bfloat16()
    expected, blocks = torch.randn(OUTPUTS), blocks_of(weight, OUTPUTS)
    found = expected.clone()
    run_one(
        *(False, blocks.data_ptr(), 4 * OUTPUTS, 2 * OUTPUTS, x.data_ptr(), pairs),
        *(found.data_ptr(), 0),
    )
    # A product of two bfloat16 is a float32, so that to add it is to multiply and add in one step.
    products = (x.float() * weight.float()).unflatten(-1, (pairs, 2))
    for step in products.split(STEP, dim=-2):
        sums = torch.zeros(OUTPUTS, 2)
        for pair in step.unbind(-2):
            sums += pair
        expected += sums[..., 0] + sums[..., 1]
    assert torch.equal(found, expected)


@needs_tiles
def test_other_vectors_may_hold_anything() -> None:
    weight, x = torch.randn(OUTPUTS, 96).bfloat16(), torch.randn(40, 96).bfloat16()
    clean = multiply(weight, x, torch.zeros(40, OUTPUTS), OUTPUTS, "on")
    x[3], x[20, 5] = float("nan"), float("inf")
    spoilt = multiply(weight, x, torch.zeros(40, OUTPUTS), OUTPUTS, "on")
    others = [t for t in range(40) if t not in (3, 20)]
    assert torch.equal(spoilt[others], clean[others])
    assert spoilt[3].isnan().all() and not spoilt[20].isfinite().any()


@numba.njit
def run_runs(runs: np.ndarray, anew: bool, *args: int) -> None:
    tiles = take_tiles(True)
    of_runs = pointer(runs)  # pyright: ignore[reportCallIssue]
    multiply_runs(tiles, anew, of_runs, *args)
    release_tiles(tiles)


@needs_tiles
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("steps", [1, 2, 18])
def test_runs_of_vectors_may_lie_anywhere(steps: int, count: int) -> None:
    torch.manual_seed(steps)
    inputs = 2 * ROWS * steps
    x = torch.randn(RUNS, ROWS, inputs + 10).bfloat16()
    weights = torch.randn(count, ROWS, inputs).bfloat16()
    blocks = weights.view(torch.int32).mT.contiguous()
    order = torch.randperm(RUNS)
    places = [[x[run].data_ptr(), 2 * x.stride(1)] for run in order]
    runs, sums = np.array(places, np.int64).ravel(), torch.full((RUNS * ROWS, ROWS), torch.nan)
    exact = (x[order, :, :inputs].double() @ weights.double().sum(0).T).flatten(0, 1)
    for times, anew in enumerate((True, False), start=1):
        run_runs(runs, anew, blocks.data_ptr(), count, steps, sums.data_ptr())
        assert (sums - times * exact).abs().max() <= 1e-4 * count


@numba.njit
def run_rows(weights: np.ndarray, paired: np.ndarray, anew: bool, *args: int) -> None:
    tiles = take_tiles(True)
    given, into = pointer(weights), pointer(paired)  # pyright: ignore[reportCallIssue]
    for place in range(0, len(weights), LANES):
        store_in_pairs(load(given, place), into, place, len(weights))
    multiply_rows(tiles, anew, *args)
    release_tiles(tiles)


@needs_tiles
@pytest.mark.parametrize("has_later", [False, True])
@pytest.mark.parametrize("results", [1, 12, ROWS])
@pytest.mark.parametrize("steps", [1, 2, 3, 16])
@pytest.mark.parametrize("count", [1, ROWS, ROWS + 5, RUNS * ROWS])
def test_weighted_rows_may_lie_anywhere(
    count: int, steps: int, results: int, has_later: bool
) -> None:
    torch.manual_seed(count)
    numbers, most = 2 * ROWS * steps, RUNS * ROWS
    x = torch.randn(RUNS, ROWS, numbers + 10).bfloat16()
    order = torch.randperm(RUNS)
    rows = x[order, :, :numbers].flatten(0, 1)[:count].double()
    places = [[x[run].data_ptr(), 2 * x.stride(1)] for run in order]
    runs = np.array(places, np.int64).ravel()
    # Rows behind the last one and their weights may hold anything.
    x[order[(count - 1) // ROWS], (count - 1) % ROWS + 1 :] = torch.nan
    weights = torch.randn(ROWS, most).bfloat16().float()
    exact = weights[:, :count].double() @ rows
    weights[:, count:] = torch.nan
    paired = np.empty(2 * ROWS * most, np.float32)
    out = torch.full((steps + 1, ROWS, 2, ROWS), torch.nan)
    places = paired.ctypes.data, 4 * most, 4 * ROWS * most
    later = runs.ctypes.data if has_later else 0
    for times, anew in enumerate((True, False), start=1):
        given = runs.ctypes.data, count, *places, results, steps, out.data_ptr(), later
        run_rows(weights.numpy().ravel(), paired, anew, *given)
        found = out[:-1].permute(1, 0, 3, 2).flatten(1)  # pairs, which stood apart
        assert (found - times * exact)[:results].abs().max() <= 1e-4
    assert out[-1].isnan().all() and out[:-1, results:].isnan().all()


@pytest.mark.skipif(not HAS_VECTORS, reason="the processor has no AVX2")
@pytest.mark.parametrize("tiles", [False, pytest.param(True, marks=needs_tiles)])
@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 6, 7, 40])
def test_either_way_it_is_the_product(tiles: bool, anew: bool, tokens: int) -> None:
    torch.manual_seed(tokens)
    weight, x = torch.randn(OUTPUTS, 96).bfloat16(), torch.randn(tokens, 96).bfloat16()
    block, sums = blocks_of(weight, OUTPUTS), torch.ones(tokens, OUTPUTS)
    of_x = x.data_ptr(), 2 * 96, 48
    run_either(
        tiles,
        anew,
        block.data_ptr(),
        *of_x,
        sums.data_ptr(),
        tokens,
        block.data_ptr() + block.nbytes,
    )
    exact = (0 if anew else 1) + x.double() @ weight.double().T
    assert (sums - exact).abs().max() <= 1e-5
