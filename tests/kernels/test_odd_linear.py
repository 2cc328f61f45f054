"""A linear layer whose outputs fill no whole vectors against its formula."""

from typing import Any

import pytest
import torch

from hybridrt.kernels.linear import linear
from hybridrt.kernels.odd_linear import FEWEST_OUTPUTS, VECTOR, odd_linear, takes
from tests.harness.tolerance import assert_right

Place = tuple[str, torch.dtype]

PLACES = [
    ("cpu", torch.bfloat16),
    pytest.param(("cuda", torch.bfloat16), marks=pytest.mark.gpu),
    pytest.param(("cuda", torch.float16), marks=pytest.mark.gpu),
]
"""What it takes is computed the same way everywhere; only on a GPU does `linear` call it."""


def _normal(*shape: int, seed: int, place: Place) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(*place)


def _multiply(x: torch.Tensor, weight: torch.Tensor, *bias: Any) -> torch.Tensor:
    return sum(bias, x @ weight.T)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("shape", "outputs"),
    [((2, 64), 1025), ((70, 33), 1031), ((3, 5, 40), 1026), ((0, 16), 1030), ((7, 1), 2047)],
)
def test_odd_outputs(place: Place, shape: tuple[int, ...], outputs: int, biased: bool) -> None:
    x, weight = (
        _normal(*size, seed=seed, place=place)
        for seed, size in enumerate([shape, (outputs, shape[-1])])
    )
    bias = [_normal(outputs, seed=9, place=place)] if biased else []
    out = odd_linear(x, weight, *(bias or [None]))
    assert out.shape == (*shape[:-1], outputs) and out.dtype == x.dtype
    assert out.stride(-2) % VECTOR == 0 and out.stride(-1) == 1
    if out.numel():
        assert_right(out, _multiply, x, weight, *bias)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_what_it_takes(place: Place) -> None:
    x = _normal(65, 8, seed=0, place=place)
    for outputs in range(FEWEST_OUTPUTS - 1, FEWEST_OUTPUTS + VECTOR + 1):
        weight = _normal(outputs, 8, seed=1, place=place)
        is_taken = outputs not in (FEWEST_OUTPUTS - 1, FEWEST_OUTPUTS, FEWEST_OUTPUTS + VECTOR)
        assert takes(x, weight) is is_taken
        assert not takes(x.float(), weight) and not takes(x.float(), weight.float())


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 2, 64, 65])
def test_a_layer_calls_it(tokens: int) -> None:
    """What is called of 1 and few tokens is others'; all give the same."""
    place = ("cuda", torch.bfloat16)
    x = _normal(tokens, 256, seed=0, place=place)
    weight = _normal(20_001, 256, seed=1, place=place)
    out = linear(x, weight, None)
    assert_right(out, _multiply, x, weight)
    assert (out.stride(0) == 20_008) == (tokens > 1)
