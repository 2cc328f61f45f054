"""Products of each head's own weight in Triton against their formula."""

import pytest
import torch
from torch import Tensor

from tests.harness.tolerance import assert_right

Place = tuple[str, torch.dtype]
# Of heads, inputs and outputs.
SIZES = [(1, 1, 1), (3, 12, 24), (5, 100, 75), (2, 600, 40), (2, 128, 300)]


def _normal(*shape: int, seed: int, place: Place) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(*place)


def _poison(*shape: int, place: Place) -> Tensor:
    return torch.full(shape, torch.nan, dtype=place[1], device=place[0])


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("thi,hio->tho", x, weight)


@pytest.mark.parametrize("tokens", [1, 3, 17, 65, 129])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_any_number_of_tokens(place: Place, sizes: tuple[int, int, int], tokens: int) -> None:
    from hybridrt.kernels.triton.mla_project import project

    heads, inputs, outputs = sizes
    x = _normal(tokens, heads, inputs, seed=0, place=place)
    weight = _normal(heads, inputs, outputs, seed=1, place=place)
    out = _poison(tokens, heads, outputs, place=place)
    project(x, weight, out)
    assert_right(out, _product, x, weight)


@pytest.mark.parametrize("tokens", [2, 140])
def test_parts_of_other_tensors(place: Place, tokens: int) -> None:
    """Queries beside their rotated part, both weights as one, and rows among a result's."""
    from hybridrt.kernels.triton.mla_project import absorb, expand_values

    queries = _normal(tokens, 3, 50, seed=0, place=place)[..., :33]
    w_uk, w_uv = _normal(3, 33 + 20, 70, seed=1, place=place).split([33, 20], dim=1)
    latents = absorb(queries, w_uk)
    assert_right(latents, _product, queries, w_uk)
    whole = _poison(tokens + 2, 3, 20, place=place)
    expand_values(latents, w_uv, whole[1:-1])
    assert_right(whole[1:-1], _product, latents, w_uv.transpose(1, 2))
    assert whole[0].isnan().all() and whole[-1].isnan().all()


@pytest.mark.parametrize("size", [1e-3, 100.0])
def test_small_and_large_numbers(place: Place, size: float) -> None:
    from hybridrt.kernels.triton.mla_project import absorb

    q, w = size * _normal(2, 3, 128, seed=0, place=place), _normal(3, 128, 64, seed=1, place=place)
    assert_right(absorb(q, w), _product, q, w)


def test_no_tokens(place: Place) -> None:
    from hybridrt.kernels.triton.mla_project import absorb

    weight = _normal(3, 12, 24, seed=1, place=place)
    assert absorb(_normal(0, 3, 12, seed=0, place=place), weight).shape == (0, 3, 24)
