"""A linear layer on one token in Triton against its formula."""

import pytest
import torch

from tests.harness.tolerance import assert_right
from tests.kernels.triton.conftest import ONE_DTYPE_HERE

Place = tuple[str, torch.dtype]


def _normal(*shape: int, seed: int, place: Place) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(*place)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (7, 33), (64, 1024), (5, 2500)])
def test_one_token(
    place: Place, outputs: int, inputs: int, rows: tuple[int, ...], biased: bool
) -> None:
    from hybridrt.kernels.triton.one_row import one_row_linear, takes

    x, weight = (
        _normal(*shape, inputs, seed=len(shape), place=place) for shape in (rows, [outputs])
    )
    bias = [_normal(outputs, seed=9, place=place)] if biased else []
    assert takes(x, weight)
    out = one_row_linear(x, weight, *(bias or [None]))
    assert out.shape == (*rows, outputs) and out.dtype == x.dtype
    assert_right(out, lambda x, w, *b: sum(b, x @ w.T), x, weight, *bias)


def test_views(place: Place) -> None:
    """Of a wider x, and a weight among others."""
    from hybridrt.kernels.triton.one_row import one_row_linear, takes

    x = _normal(1, 2, 70, seed=0, place=place)[:, 1, ::2]
    weight = _normal(9, 100, seed=1, place=place)[2:7, 10:45]
    assert takes(x, weight)
    assert_right(one_row_linear(x, weight, None), lambda x, w: x @ w.T, x, weight)


def test_what_it_does_not_take(place: Place) -> None:
    from hybridrt.kernels.triton.one_row import takes

    weight = _normal(5, 8, seed=1, place=place)
    assert not takes(_normal(2, 8, seed=0, place=place), weight)
    assert not takes(_normal(0, 8, seed=0, place=place), weight)
    assert not takes(_normal(1, 5, seed=0, place=place), weight.T)
    assert not takes(_normal(1, 8, seed=0, place=place).double(), weight)


@ONE_DTYPE_HERE
@pytest.mark.parametrize("biased", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize(
    ("outputs", "inputs"), [((1, 1), 1), ((7, 4), 33), ((64, 1), 1024), ((5, 130), 2500)]
)
def test_two_layers_give_the_bits_of_each(
    place: Place, outputs: tuple[int, int], inputs: int, biased: tuple[int, ...]
) -> None:
    from hybridrt.kernels.triton.one_row import one_row_linear
    from hybridrt.kernels.triton.one_row_pair import one_row_pair

    x = _normal(1, 2 * inputs, seed=0, place=place)[:, ::2]
    weights = [_normal(rows, inputs + 3, seed=rows, place=place)[:, :inputs] for rows in outputs]
    biases = [
        _normal(rows, seed=9, place=place) if i in biased else None
        for i, rows in enumerate(outputs)
    ]
    found = one_row_pair(x, weights, biases)
    for out, weight, bias in zip(found, weights, biases, strict=True):
        assert torch.equal(out, one_row_linear(x, weight, bias))
