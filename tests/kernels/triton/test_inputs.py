"""What scans and delta rules are given, and their gated norm, in Triton against the definitions."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.reference import delta_inputs as delta_reference
from hybridrt.kernels.reference import gated_rms_norm as norm_reference
from hybridrt.kernels.reference import kda_inputs as kda_reference
from hybridrt.kernels.reference import scan_inputs as scan_reference
from tests.harness.tolerance import assert_right

Place = tuple[str, torch.dtype]
Row = tuple[int, ...]


def _normal(
    *shape: int, seed: int, place: Place, spread: float = 3.0, dtype: torch.dtype | None = None
) -> Tensor:
    """The middle of wider rows, as a split of a projection gives it."""
    draw = torch.Generator().manual_seed(seed)
    wide = torch.randn(*shape[:-1], shape[-1] + 6, generator=draw).mul_(spread)
    return wide.to(place[0], dtype or place[1])[..., 3:-3]


def _assert_near(
    found: tuple[Tensor, ...], definition: Callable[..., tuple[Tensor, ...]], *inputs: Any
) -> None:
    """In float32, each number to its own digits."""
    double = (x.double().cpu() if isinstance(x, Tensor) else x for x in inputs)
    for one, other in zip(found, definition(*double), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.cpu(), other.float(), rtol=3e-5, atol=1e-37)


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    """What a kernel leaves out is NaN."""
    empty = torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> Tensor:
        made = empty(*args, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.mark.parametrize("rows", [(), (1,), (3,), (5, 3), (2, 1, 3), (0,), (0, 2)], ids=str)
@pytest.mark.parametrize(("size", "groups"), [(33, 1), (60, 4), (128, 1), (1500, 1)])
@pytest.mark.parametrize("gate", ["silu", "sigmoid"])
def test_gated_rms_norm(place: Place, rows: Row, size: int, groups: int, gate: Any) -> None:
    from hybridrt.kernels.triton.gated_rms_norm import gated_rms_norm

    x, z = (_normal(*rows, size, seed=seed, place=place) for seed in (0, 1))
    weight = _normal(size, seed=2, place=place)
    for norm_first in (False, True):
        rest = (1e-5, groups, norm_first, gate)
        out = gated_rms_norm(x, z, weight, *rest)
        assert out.shape == z.shape and out.dtype == z.dtype
        if len(z) == 0:
            continue
        assert_right(out, lambda *given, rest=rest: _norm(*given, *rest), x, z, weight)
        packed = gated_rms_norm(x.contiguous(), z.contiguous(), weight.contiguous(), *rest)
        assert torch.equal(out, packed)


def _norm(x: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int, *how: Any) -> Tensor:
    norm_first, gate = how
    gating = torch.sigmoid(z) * (z if gate == "silu" else 1)
    y = (x if norm_first else x * gating).unflatten(-1, (groups, -1))
    y = (y / torch.sqrt(y.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight
    return y * gating if norm_first else y


@pytest.mark.parametrize("size", [60, 128])
def test_a_row_of_a_gated_norm_gives_the_same_bits_in_any_company(place: Place, size: int) -> None:
    from hybridrt.kernels.triton.gated_rms_norm import gated_rms_norm

    x, z = (_normal(19, size, seed=seed, place=place) for seed in (0, 1))
    rest = (_normal(size, seed=2, place=place), 1e-5, 2, False, "silu")
    whole = gated_rms_norm(x, z, *rest)
    for i in (0, 7, 18):
        assert torch.equal(gated_rms_norm(x[i : i + 1], z[i : i + 1], *rest), whole[i : i + 1])


@pytest.mark.parametrize("before", [False, True])
def test_a_gated_norm_of_extremes(place: Place, before: bool) -> None:
    from hybridrt.kernels.triton.gated_rms_norm import gated_rms_norm

    x = torch.tensor([[0.0, 0.0], [3e4, -3e4], [1e-7, 2e-7], [1.0, 2.0], [1.0, 2.0]]).to(*place)
    z = torch.tensor([[1.0, 9.0], [1.0, 2.0], [3.0, -3.0], [-3e4, 3e4], [-1e2, 0.0]]).to(*place)
    rest = (torch.ones(2).to(*place), 1e-5, 1, before, "silu")
    expected = norm_reference.gated_rms_norm(x, z, *rest)
    torch.testing.assert_close(gated_rms_norm(x, z, *rest), expected)


def test_a_gated_norm_gives_the_dtype_of_the_gate(place: Place) -> None:
    from hybridrt.kernels.triton.gated_rms_norm import gated_rms_norm

    x = _normal(4, 64, seed=0, place=place, dtype=torch.float32)
    z, weight = (_normal(*shape, seed=1, place=place) for shape in ((4, 64), (64,)))
    out = gated_rms_norm(x, z, weight, 1e-5, 2, True, "silu")
    assert out.dtype == z.dtype
    expected = norm_reference.gated_rms_norm(x, z, weight, 1e-5, 2, True, "silu")
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("tokens", [0, 1, 3, 40])
@pytest.mark.parametrize(
    ("channels", "state"), [(1, ()), (7, (1,)), (48, ()), (1100, (3,))], ids=str
)
@pytest.mark.parametrize("limits", [(0.0, inf), (1e-3, 0.1)])
def test_scan_inputs(
    place: Place, tokens: int, channels: int, state: Row, limits: tuple[float, float]
) -> None:
    from hybridrt.kernels.triton.scan_inputs import scan_inputs

    A_log = _normal(channels, *(state or (1,)), seed=2, place=place, dtype=torch.float32)
    A_log = A_log if state else A_log[:, 0]
    for spread in (0.1, 10.0):
        dt = _normal(tokens, channels, seed=0, place=place, spread=spread)
        for bias in (None, _normal(channels, seed=1, place=place)):
            found = scan_inputs(dt, bias, A_log, limits)
            _assert_near(found, scan_reference.scan_inputs, dt, bias, A_log, limits)


def test_steps_of_extremes(place: Place) -> None:
    from hybridrt.kernels.triton.scan_inputs import scan_inputs

    values = [-inf, -6e4, -100.0, -20.0, -17.0, 0.0, 20.0, 100.0, 6e4, inf, torch.nan]
    dt = torch.tensor([values]).to(*place)
    for limits in ((0.0, inf), (1e-3, 0.1)):
        steps, _ = scan_inputs(dt, None, torch.zeros(len(values), device=place[0]), limits)
        expected = F.softplus(dt.float()).clamp(*limits)
        torch.testing.assert_close(steps, expected, rtol=1e-5, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("tokens", [0, 1, 3, 21])
@pytest.mark.parametrize(
    ("key_heads", "shared", "key_dim"), [(1, 1, 1), (2, 3, 5), (4, 2, 64), (1, 2, 128)]
)
def test_delta_inputs(place: Place, tokens: int, key_heads: int, shared: int, key_dim: int) -> None:
    from hybridrt.kernels.triton.delta_inputs import delta_inputs

    heads = key_heads * shared
    gates = [_normal(tokens, heads, seed=seed, place=place) for seed in (1, 2)]
    gates += [_normal(heads, seed=seed, place=place, dtype=torch.float32) for seed in (3, 4)]
    for spread, scale in ((1e-3, 1.0), (30.0, 2.0)):
        qk = _normal(tokens, 2 * key_heads * key_dim, seed=0, place=place, spread=spread)
        given: Any = (qk, *gates, key_heads, scale)
        found = delta_inputs(*given)
        assert found[0].shape == found[1].shape == (tokens, key_heads, key_dim)
        _assert_near(found, _in_double(delta_reference.delta_inputs), *given)


@pytest.mark.parametrize("tokens", [0, 1, 3, 21])
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 5), (2, 64), (5, 128)])
@pytest.mark.parametrize("bound", [None, -5.0])
def test_kda_inputs(place: Place, tokens: int, heads: int, dim: int, bound: float | None) -> None:
    from hybridrt.kernels.triton.kda_inputs import kda_inputs

    k, f = (_normal(tokens, heads * dim, seed=seed, place=place) for seed in (1, 2))
    b = _normal(tokens, heads, seed=3, place=place)
    learned = [
        _normal(size, seed=size, place=place, spread=1.0, dtype=torch.float32)
        for size in (heads, heads * dim)
    ]
    for spread in (1e-3, 30.0):
        q = _normal(tokens, heads * dim, seed=0, place=place, spread=spread)
        given: Any = (q, k, f, b, *learned, bound)
        found = kda_inputs(*given)
        assert found[0].shape == found[1].shape == found[2].shape == (tokens, heads, dim)
        _assert_near(found, _in_double(kda_reference.kda_inputs), *given)


def _in_double(definition: Any) -> Any:
    """The same, where `float()` doesn't round."""

    def run(*given: Any) -> tuple[Tensor, ...]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tensor, "float", Tensor.double)
            return tuple(part.to(torch.float64) for part in definition(*given))

    return run
