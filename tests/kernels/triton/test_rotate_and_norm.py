"""rotate_and_norm in Triton against the two operations that it joins."""

import pytest
import torch
from torch import Tensor

from hybridrt.kernels.rotate import rotate_and_norm as contract
from tests.harness.tolerance import assert_close, assert_twice_at_most
from tests.kernels.triton.test_rotate import _inputs, _turned

Place = tuple[str, torch.dtype]
# Of tokens, heads, kv_heads, what is turned of a head, what isn't, and what is normed.
SIZES = [(1, 16, 1, 64, 0, 512), (3, 3, 1, 6, 0, 13), (5, 40, 7, 80, 1, 100), (2, 1, 2, 2, 24, 1)]


def _given(sizes: tuple[int, ...], place: Place, size: float) -> tuple[Tensor, ...]:
    """Both parts of a projection, with what is normed, and where tokens are."""
    tokens, heads, kv_heads, dim, still, rank = sizes
    qk, *where = _inputs(tokens, heads + kv_heads, dim + still, dim // 2, place)
    draw = torch.Generator().manual_seed(1)
    latents = (size * torch.randn(tokens, rank + 5, generator=draw)).to(*place)[:, 3:-2]
    weight = torch.randn(rank, generator=draw).to(*place)
    return *qk.split([heads, kv_heads], dim=1), latents, weight, *where


@pytest.mark.parametrize("size", [1.0, 1e-3, 100.0])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_both_at_once(
    place: Place, sizes: tuple[int, ...], interleaved: bool, offset: float, size: float
) -> None:
    from hybridrt.kernels.triton.rotate_and_norm import rotate_and_norm

    q, k, latents, weight, table, positions = _given(sizes, place, size)
    found = rotate_and_norm(q, k, latents, weight, 1e-5, offset, table, positions, interleaved)
    q, k, latents, weight = (part.cpu() for part in (q, k, latents, weight))
    table, positions = table.cpu(), positions.cpu()
    coarse = contract(q, k, latents, weight, 1e-5, offset, table, positions, interleaved)
    exact = [_turned(x, table, positions, interleaved, False) for x in (q, k)]
    x = latents.double()
    exact.append((weight.double() + offset) * x / (x.square().mean(-1, True) + 1e-5).sqrt())
    for out, honest, right in zip(found, coarse, exact, strict=True):
        assert out.dtype == place[1] and out.is_contiguous() and out.shape == honest.shape
        if place[1] == torch.float32:
            assert_close(out, right)
        else:
            assert_twice_at_most(out.cpu(), honest, right)


def test_views_and_a_weight_of_another_dtype(place: Place) -> None:
    from hybridrt.kernels.triton.rotate_and_norm import rotate_and_norm

    x, table, positions = _inputs(6, 10, 60, 12, place)
    q, k, latents = x[:, 3:8, 1:57:2], x[:, 1:2, 5:33], x[:, 9, ::3]
    weight = x[0, :2].float().flatten()[1::6]
    rest = (1e-5, 1.0, table, positions, False)
    found = rotate_and_norm(q, k, latents, weight, *rest)
    q, k, latents, weight = (part.contiguous() for part in (q, k, latents, weight))
    for out, alone in zip(found, rotate_and_norm(q, k, latents, weight, *rest), strict=True):
        assert torch.equal(out, alone)
    assert found[0].dtype == place[1] and found[2].dtype == torch.float32


def test_no_tokens_and_no_heads(place: Place) -> None:
    from hybridrt.kernels.triton.rotate_and_norm import rotate_and_norm

    x, table, positions = _inputs(4, 3, 8, 4, place)
    rest = (x[0, 0], 1e-5, 0.0, table)
    none = rotate_and_norm(x[:0], x[:0, :1], x[:0, 0], *rest, positions[:0], False)
    assert [part.shape for part in none] == [(0, 3, 8), (0, 1, 8), (0, 8)]
    q, k, normed = rotate_and_norm(x, x[:, :0], x[:, 0], *rest, positions, False)
    assert q.isfinite().all() and k.shape == (4, 0, 8) and normed.isfinite().all()
