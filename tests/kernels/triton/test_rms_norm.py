"""rms_norm and add_rms_norm in Triton against their formula."""

import pytest
import torch
from torch import Tensor

from tests.harness.tolerance import assert_right, assert_small_rms_ratio

Place = tuple[str, torch.dtype]
ROWS = [(1,), (), (5,), (2, 3), (2, 1, 3)]


def _norm(x: Tensor, weight: Tensor, offset: float) -> Tensor:
    return (weight + offset) * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def _normal(*shape: int, seed: int, place: Place) -> Tensor:
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(*place)


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize(("size", "offset"), [(1, 0.0), (33, 1.0), (64, 0.0), (1500, 1.0)])
def test_rms_norm(place: Place, rows: tuple[int, ...], size: int, offset: float) -> None:
    from hybridrt.kernels.triton.rms_norm import rms_norm

    x, weight = _normal(*rows, size, seed=0, place=place), _normal(size, seed=1, place=place)
    out = rms_norm(x, weight, 1e-5, offset)
    assert out.dtype == weight.dtype
    assert_right(out, lambda x, w: _norm(x, w, offset), x, weight)


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize(("size", "offset"), [(1, 0.0), (33, 1.0), (64, 0.0), (1500, 1.0)])
def test_add_rms_norm(place: Place, rows: tuple[int, ...], size: int, offset: float) -> None:
    """The sum to the bit, and the norm of what it was rounded to."""
    from hybridrt.kernels.triton.rms_norm import add_rms_norm

    x, y = (_normal(*rows, size, seed=seed, place=place) for seed in (0, 1))
    weight = _normal(size, seed=2, place=place)
    for scale in (1.0, 0.22):
        total, out = add_rms_norm(x, y, weight, 1e-5, offset, scale)
        # In float32 a GPU multiplies and adds in one step.
        steps = 0 if place[1].itemsize == 2 or scale == 1.0 or place[0] == "cpu" else 1e-6
        torch.testing.assert_close(total, x + y * scale, rtol=steps, atol=steps)
        assert out.dtype == weight.dtype
        assert_right(out, lambda x, w: _norm(x, w, offset), total, weight)


def test_a_float32_stream_goes_into_the_models_dtype(place: Place) -> None:
    from hybridrt.kernels.triton.rms_norm import add_rms_norm

    x, (y, weight) = (
        _normal(4, 64, seed=0, place=(place[0], torch.float32)),
        (_normal(*shape, seed=1, place=place) for shape in ((4, 64), (64,))),
    )
    total, out = add_rms_norm(x, y, weight, 1e-5, 0.0)
    assert torch.equal(total, x + y)
    assert out.dtype == place[1]
    assert_small_rms_ratio(out, _norm(total.double(), weight.double(), 0.0).cpu())


def test_rows_among_others(place: Place) -> None:
    """Heads beside others in a projection, and a sum of tensors with unlike gaps."""
    from hybridrt.kernels.triton.rms_norm import add_rms_norm, rms_norm

    wide, weight = _normal(5, 4, 70, seed=0, place=place), _normal(33, seed=1, place=place)
    x, y = wide[:, 1:3, :33], wide.transpose(0, 1)[1:3, :, 35:68].transpose(0, 1)
    alone = add_rms_norm(x.contiguous(), y.contiguous(), weight, 1e-5, 0.0)
    for found, expected in zip(add_rms_norm(x, y, weight, 1e-5, 0.0), alone, strict=True):
        assert torch.equal(found, expected)
    apart = rms_norm(wide[..., ::2][..., :33], weight, 1e-5, 0.0)
    assert torch.equal(apart, rms_norm(wide[..., ::2][..., :33].contiguous(), weight, 1e-5, 0.0))


def test_three_parts_of_the_same_rows(place: Place) -> None:
    from hybridrt.kernels.triton.rms_norm import rms_norm_three

    wide = _normal(5, 130, seed=0, place=place)
    parts = (wide[:, 3:80], wide[:, 80:96], wide[:, 97:98])
    weights = tuple(_normal(part.shape[1], seed=i, place=place) for i, part in enumerate(parts))
    for part, weight, out in zip(parts, weights, rms_norm_three(parts, weights, 1e-5), strict=True):
        assert out.dtype == place[1] and out.is_contiguous()
        assert_right(out, lambda x, w: _norm(x, w, 0.0), part, weight)
    none = rms_norm_three([part[:0] for part in parts], weights, 1e-5)
    assert [out.shape for out in none] == [(0, 77), (0, 16), (0, 1)]


def test_no_rows(place: Place) -> None:
    from hybridrt.kernels.triton.rms_norm import add_rms_norm, rms_norm

    x, weight = _normal(0, 33, seed=0, place=place), _normal(33, seed=1, place=place)
    assert rms_norm(x, weight, 1e-5, 0.0).shape == (0, 33)
    assert [part.shape for part in add_rms_norm(x, x, weight, 1e-5, 0.0)] == [(0, 33), (0, 33)]
