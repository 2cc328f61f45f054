"""gated, gated_by, sigmoid_gated, add_gated and relu2 in Triton against their formulas."""

from math import inf
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.reference import gates as reference
from hybridrt.kernels.reference.gates import Gating
from tests.harness.tolerance import assert_right

Place = tuple[str, torch.dtype]
GATINGS: tuple[Gating, ...] = get_args(Gating)
ROWS = [(), (1,), (5,), (2, 3), (2, 1, 3)]


def _normal(*shape: int, place: Place, seed: int = 0, spread: float = 3.0) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (spread * drawn).to(*place)


def _definition(gate_up: Tensor, gating: Gating, alpha: float, limit: float) -> Tensor:
    by_turns = gating == "clamped" or "turns" in gating
    gate, up = (
        (gate_up[..., 0::2], gate_up[..., 1::2]) if by_turns else gate_up.tensor_split(2, dim=-1)
    )
    if gating.startswith("clamped"):
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(alpha * gate) * (up + 1)
    if gating == "bent by turns":
        bent = alpha * torch.tanh(gate / alpha) * torch.sigmoid(gate)
        return bent * limit * torch.tanh(up / limit)
    if gating == "limited":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if gating == "silu of scaled":
        gate = alpha * gate
    return reference.ACTIVATIONS.get(gating, F.silu)(gate) * up


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("size", [1, 33, 1500])
def test_gated(place: Place, gating: Gating, rows: tuple[int, ...], size: int) -> None:
    from hybridrt.kernels.triton.gated import gated

    gate_up = _normal(*rows, 2 * size, place=place)
    out = gated(gate_up, gating, 1.7, 2.5)
    assert out.dtype == place[1] and out.is_contiguous()
    assert_right(out, lambda x: _definition(x, gating, 1.7, 2.5), gate_up)


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("spread", [1e-3, 100.0])
def test_tiny_and_large_values(place: Place, gating: Gating, spread: float) -> None:
    from hybridrt.kernels.triton.gated import gated

    gate_up = _normal(4, 200, place=place, spread=spread)
    alpha = 0.7 if gating == "silu of scaled" else 50.0  # float16 has no room for larger ones
    out = gated(gate_up, gating, alpha, 30.0)
    assert_right(out, lambda x: _definition(x, gating, alpha, 30.0), gate_up)


@pytest.mark.parametrize("gating", GATINGS)
def test_rows_among_others(place: Place, gating: Gating) -> None:
    from hybridrt.kernels.triton.gated import gated

    wide = _normal(5, 4, 70, place=place)
    for part in (wide[1:3, :, 3:37], wide[:, 1:3, :34], wide[0, :, ::5], wide[..., 0]):
        assert torch.equal(
            gated(part, gating, 1.7, 7.0), gated(part.contiguous(), gating, 1.7, 7.0)
        )


def test_without_a_limit(place: Place) -> None:
    from hybridrt.kernels.triton.gated import gated

    gate_up = _normal(3, 66, place=place)
    assert torch.equal(gated(gate_up, "limited", 1.0, inf), gated(gate_up, "silu", 1.0, inf))


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter: infinity by 0
@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("number", [inf, -inf, torch.nan])
@pytest.mark.parametrize("at", [0, 1, 4, 5])
def test_what_is_no_number_is_as_in_the_reference(
    place: Place, gating: Gating, number: float, at: int
) -> None:
    from hybridrt.kernels.triton.gated import gated

    gate_up = _normal(2, 8, place=place)
    gate_up[1, at] = number
    expected = reference.gated(gate_up, gating, 1.7, 7.0)
    found = gated(gate_up, gating, 1.7, 7.0)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())


@pytest.mark.parametrize("size", [1, 33, 1500])
def test_gated_by_and_added(place: Place, size: int) -> None:
    """Parts of wider rows, as a split of a projection gives them."""
    from hybridrt.kernels.triton.gated import add_gated, gated_by

    wide = _normal(7, 3 * size + 5, place=place)
    values, more, gate = wide[:, 3:].tensor_split([size, 2 * size], dim=1)
    gate = gate[:, :size]
    out = gated_by(values, gate)
    assert out.dtype == place[1] and out.is_contiguous()
    assert_right(out, lambda v, g: v * F.silu(g), values, gate)
    own = gate[:, :1]
    out = add_gated(values, more, own)
    assert out.dtype == place[1] and out.is_contiguous()
    assert_right(out, lambda v, m, g: v + torch.sigmoid(g) * m, values, more, own)


@pytest.mark.parametrize("size", [1, 33, 1500])
def test_sigmoid_gated(place: Place, size: int) -> None:
    """A gate each, in a part of wider rows, and one of each head or token."""
    from hybridrt.kernels.triton.gated import sigmoid_gated

    wide = _normal(7, 2, 2 * size + 5, place=place, spread=20.0)
    values, each = wide[..., 3:].tensor_split([size], dim=2)
    for gate in (each[..., :size], each[..., :1], _normal(7, 2, 1, place=place)):
        out = sigmoid_gated(values, gate)
        assert out.dtype == place[1] and out.is_contiguous()
        assert_right(out, lambda v, g: v * torch.sigmoid(g), values, gate)
        flat = sigmoid_gated(values[:, 0], gate[:, 0])
        assert torch.equal(flat, out[:, 0])


def test_a_result_of_unlike_dtypes_is_of_the_wider(place: Place) -> None:
    from hybridrt.kernels.triton.gated import add_gated, gated_by

    narrow, wide = _normal(2, 9, place=place), _normal(2, 9, place=(place[0], torch.float32))
    assert gated_by(wide, narrow).dtype == gated_by(narrow, wide).dtype == torch.float32
    assert add_gated(narrow, narrow, wide[:, :1]).dtype == torch.float32


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("size", [1, 33, 1500])
def test_add_gives_what_torch_does(place: Place, rows: tuple[int, ...], size: int) -> None:
    from hybridrt.kernels.triton.gated import add

    x, wide = _normal(*rows, size, place=place), _normal(*rows, 3 * size, place=place)
    y = wide[..., 1 : 3 * size : 3]
    for a, b in ((x, y), (y, x), (x.float(), y)):
        assert torch.equal(add(a, b), a + b)
        assert add(a, b).dtype == (a + b).dtype
        steps = 0 if place[0] == "cpu" or place[1].itemsize == 2 else 1e-6  # see `add_rms_norm`
        torch.testing.assert_close(add(a, b, 0.22), a + b * 0.22, rtol=steps, atol=steps)


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("size", [1, 33, 1500])
def test_relu2(place: Place, rows: tuple[int, ...], size: int) -> None:
    from hybridrt.kernels.triton.gated import relu2

    x = _normal(*rows, size, place=place)
    out = relu2(x)
    assert out.dtype == place[1] and out.is_contiguous()
    assert_right(out, lambda x: x.clamp(min=0).square(), x)
    assert torch.equal(relu2(x[..., ::2]), out[..., ::2])


def test_relu2_of_what_is_no_number(place: Place) -> None:
    from hybridrt.kernels.triton.gated import relu2

    x = torch.tensor([inf, -inf, torch.nan, -0.0]).to(*place)
    out = relu2(x).float().cpu()
    torch.testing.assert_close(out, torch.tensor([inf, 0, torch.nan, 0]), equal_nan=True)


def test_no_rows(place: Place) -> None:
    from hybridrt.kernels.triton.gated import add_gated, gated, gated_by, relu2, sigmoid_gated

    none = _normal(0, 34, place=place)
    assert gated(none, "silu", 1.0, inf).shape == (0, 17)
    assert gated(none[:, None], "clamped", 1.7, 7.0).shape == (0, 1, 17)
    assert gated_by(none, none).shape == add_gated(none, none, none[:, :1]).shape == (0, 34)
    assert sigmoid_gated(none, none[:, :1]).shape == relu2(none).shape == (0, 34)
