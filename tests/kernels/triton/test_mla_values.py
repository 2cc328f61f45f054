"""join_and_expand in Triton against the softmax over all splits, and each head's product."""

import pytest
import torch
from torch import Tensor

from tests.harness.tolerance import FLOAT32, assert_right

Place = tuple[str, torch.dtype]


def _values(parts: Tensor, logs: Tensor, w_uv: Tensor) -> Tensor:
    weights = torch.softmax(logs.to(parts.dtype) * torch.log(torch.tensor(2.0)), dim=-1)
    return torch.einsum("ths,thsr,hvr->thv", weights.to(parts.dtype), parts, w_uv)


def _drawn(place: Place, *shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(sum(shape))
    # So that definitions in another dtype get the same numbers.
    return torch.randn(shape, generator=draw).to(place[1]).float().to(place[0])


@pytest.mark.parametrize("size", [1.0, 40.0])
@pytest.mark.parametrize("splits", [1, 2, 7, 64])
@pytest.mark.parametrize(("rank", "v_dim"), [(24, 16), (13, 5), (100, 75), (512, 128)])
def test_any_number_of_splits(
    place: Place, rank: int, v_dim: int, splits: int, size: float
) -> None:
    from hybridrt.kernels.triton.mla_values import join_and_expand

    parts, logs = _drawn(place, 2, 3, splits, rank), size * _drawn(place, 2, 3, splits)
    both = _drawn(place, 3, v_dim + 4, rank).to(place[1])
    whole = torch.full((4, 3, v_dim), torch.nan, dtype=place[1], device=place[0])
    out, w_uv = whole[1:3], both[:, 4:]
    join_and_expand(parts, logs, w_uv, out)
    assert_right(out, _values, parts, logs, w_uv)
    assert whole[0].isnan().all() and whole[3].isnan().all()


def test_splits_without_tokens_have_written_nothing(place: Place) -> None:
    from hybridrt.kernels.triton.mla_values import join_and_expand

    parts, logs = _drawn(place, 2, 3, 9, 24), _drawn(place, 2, 3, 9)
    w_uv, out = _drawn(place, 3, 16, 24).to(place[1]), torch.empty(2, 3, 16).to(*place)
    join_and_expand(parts[:, :, 2:5].contiguous(), logs[:, :, 2:5].contiguous(), w_uv, out)
    expected = out.clone()
    gone = torch.ones(9, dtype=torch.bool)
    gone[2:5] = False
    parts[:, :, gone], logs[:, :, gone] = torch.nan, -torch.inf
    join_and_expand(parts, logs, w_uv, out)
    bound = max(FLOAT32, 4 * torch.finfo(place[1]).eps) * float(expected.abs().max())
    torch.testing.assert_close(out, expected, rtol=0, atol=bound)
    logs[1] = -torch.inf
    join_and_expand(parts, logs, w_uv, out)
    assert out[1].eq(0).all() and out[0].isfinite().all()


def test_no_tokens(place: Place) -> None:
    from hybridrt.kernels.triton.mla_values import join_and_expand

    w_uv, out = _drawn(place, 3, 16, 24).to(place[1]), torch.empty(0, 3, 16).to(*place)
    join_and_expand(_drawn(place, 0, 3, 9, 24), _drawn(place, 0, 3, 9), w_uv, out)
