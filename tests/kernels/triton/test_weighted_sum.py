"""Sums of what a token's experts give."""

import pytest
import torch
from torch import Tensor

from tests.harness.tolerance import assert_right

Place = tuple[str, torch.dtype]


@pytest.mark.parametrize(
    ("tokens", "top_k", "hidden"), [(1, 1, 1), (3, 22, 40), (65, 3, 1100), (4, 2, 0), (0, 2, 16)]
)
@pytest.mark.parametrize("placed", [False, True], ids=["in order", "placed"])
def test_sums_by_weights(place: Place, tokens: int, top_k: int, hidden: int, placed: bool) -> None:
    from hybridrt.kernels.triton.weighted_sum import weighted_sum

    draw = torch.Generator().manual_seed(tokens)
    count = tokens * top_k
    values = torch.randn(count, 2 * hidden, generator=draw).to(*place)[:, ::2]
    weights = torch.rand(top_k, tokens, generator=draw).to(place[0]).t()
    places = torch.randperm(count, generator=draw).int().view(tokens, top_k).to(place[0])
    out = weighted_sum(values, weights, places if placed else None, place[1])
    assert out.dtype == place[1]
    at = places.cpu().long() if placed else torch.arange(count).view(tokens, top_k)

    def definition(values: Tensor, weights: Tensor) -> Tensor:
        return (values[at] * weights[..., None]).sum(1)

    if out.numel():
        assert_right(out, definition, values, weights)
    assert out.shape == (tokens, hidden)
