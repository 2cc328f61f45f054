"""A linear layer on a few tokens in Triton against its formula."""

from typing import Any

import pytest
import torch

from tests.harness.tolerance import assert_right

Place = tuple[str, torch.dtype]

OF_16_BITS = pytest.mark.parametrize(
    "place",
    [
        ("cpu", torch.float16),
        *(
            pytest.param(("cuda", dtype), marks=pytest.mark.gpu)
            for dtype in (torch.bfloat16, torch.float16)
        ),
    ],
    indirect=True,
    ids=["cpu", "bfloat16", "float16"],
)


def _normal(*shape: int, seed: int, place: Place) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(*place)


def _multiply(x: torch.Tensor, weight: torch.Tensor, *bias: Any) -> torch.Tensor:
    return sum(bias, x @ weight.T)


@OF_16_BITS
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"),
    [(2, 1, 1), (3, 7, 33), (16, 130, 300), (17, 250, 1000), (64, 40, 2100), (33, 256, 256)],
)
def test_few_tokens(place: Place, rows: int, outputs: int, inputs: int, biased: bool) -> None:
    from hybridrt.kernels.triton.few_rows import few_rows_linear, takes

    x, weight = (_normal(n, inputs, seed=n, place=place) for n in (rows, outputs))
    bias = [_normal(outputs, seed=9, place=place)] if biased else []
    assert takes(x, weight)
    for _ in range(2):  # the second time with the counters that the first one left
        out = few_rows_linear(x, weight, *(bias or [None]))
        assert out.shape == (rows, outputs) and out.dtype == x.dtype
        assert_right(out, _multiply, x, weight, *bias)


@OF_16_BITS
@pytest.mark.parametrize("tile", ["NARROW", "NARROWEST"])
def test_each_tile(place: Place, tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridrt.kernels.triton import few_rows

    monkeypatch.setattr(few_rows, "_tile", lambda *_: getattr(few_rows, tile))
    x, weight = _normal(5, 1100, seed=0, place=place), _normal(200, 1100, seed=1, place=place)
    assert_right(few_rows.few_rows_linear(x, weight, None), _multiply, x, weight)


@pytest.mark.usefixtures("rows_alike")
@OF_16_BITS
def test_a_row_has_the_same_bits_among_others(place: Place) -> None:
    from hybridrt.kernels.triton.few_rows import few_rows_linear

    x, weight = _normal(60, 900, seed=0, place=place), _normal(70, 900, seed=1, place=place)
    whole = few_rows_linear(x, weight, None)
    for rows in (slice(0, 2), slice(7, 24), slice(20, 53)):
        assert torch.equal(few_rows_linear(x[rows], weight, None), whole[rows])


@OF_16_BITS
def test_views(place: Place) -> None:
    """Of a wider x with more dimensions, and a weight among others."""
    from hybridrt.kernels.triton.few_rows import few_rows_linear, takes

    x = _normal(3, 2, 70, seed=0, place=place)[..., 10:45]
    weight = _normal(9, 100, seed=1, place=place)[2:7, 10:45]
    assert takes(x, weight)
    assert_right(few_rows_linear(x, weight, None), _multiply, x, weight)


@OF_16_BITS
def test_what_it_does_not_take(place: Place) -> None:
    from hybridrt.kernels.triton.few_rows import NARROW, takes
    from hybridrt.kernels.triton.launch import num_processors

    weight = _normal(5, 8, seed=1, place=place)
    for rows, is_taken in ((0, False), (1, False), (2, True), (64, True), (65, False)):
        assert takes(_normal(rows, 8, seed=0, place=place), weight) is is_taken
    most = NARROW.outputs * num_processors(weight.device)
    for outputs, is_taken in ((most, True), (most + 1, False)):
        wide = weight.new_empty(outputs, 8)
        assert takes(_normal(2, 8, seed=0, place=place), wide) is is_taken
    assert not takes(_normal(2, 5, seed=0, place=place), weight.T)
    assert not takes(_normal(2, 16, seed=0, place=place)[:, ::2], weight)
    assert not takes(_normal(2, 8, seed=0, place=place).float(), weight)
    assert not takes(_normal(2, 8, seed=0, place=place).float(), weight.float())
