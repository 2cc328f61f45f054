"""rotate and rotate_normed in Triton against the turn of each pair in float64."""

import pytest
import torch
from torch import Tensor

from hybridrt.kernels.reference.rms_norm import rms_norm as reference_norm
from hybridrt.kernels.reference.rotate import rotate as reference
from tests.harness.arguments import assert_alike
from tests.harness.tolerance import assert_close, assert_twice_at_most
from tests.kernels.triton.conftest import ONE_DTYPE_HERE

Place = tuple[str, torch.dtype]
SIZES = [(1, 1, 2), (3, 64, 128), (5, 3, 6), (2, 40, 80), (7, 33, 48)]


def _turned(x: Tensor, table: Tensor, positions: Tensor, interleaved: bool, back: bool) -> Tensor:
    out, half = x.double().clone(), table.shape[2]
    cos, sin = table[positions].double()[:, None].unbind(2)
    for j in range(half):
        first, second = (2 * j, 2 * j + 1) if interleaved else (j, half + j)
        number = torch.complex(out[..., first].clone(), out[..., second].clone())
        number *= torch.complex(cos[..., j], -sin[..., j] if back else sin[..., j])
        out[..., first], out[..., second] = number.real, number.imag
    return out


def _inputs(tokens: int, heads: int, size: int, half: int, place: Place) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(tokens, heads, size, generator=draw)
    table = torch.randn(11, 2, half, generator=draw)
    positions = torch.randint(0, 11, (tokens,), generator=draw)
    return x.to(*place), table.to(place[0]), positions.to(place[0])


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("still", [0, 1, 24])
@pytest.mark.parametrize(("tokens", "heads", "dim"), SIZES)
def test_every_pair_is_turned(
    place: Place, tokens: int, heads: int, dim: int, still: int, interleaved: bool, back: bool
) -> None:
    from hybridrt.kernels.triton.rotate import rotate

    x, *where = _inputs(tokens, heads, dim + still, dim // 2, place)
    out = rotate(x, *where, interleaved, back)
    assert out.dtype == place[1] and out.is_contiguous()
    assert torch.equal(out[..., dim:], x[..., dim:])
    cpu = [part.cpu() for part in (x, *where)]
    exact = _turned(*cpu, interleaved, back)
    if place[1] == torch.float32:
        assert_close(out, exact)
    else:
        assert_twice_at_most(out.cpu(), reference(*cpu, interleaved, back), exact)


@pytest.mark.parametrize("interleaved", [False, True])
def test_heads_among_others(place: Place, interleaved: bool) -> None:
    """A part of a projection, elements with gaps, and numbers with gaps in every table."""
    from hybridrt.kernels.triton.rotate import rotate

    x, table, positions = _inputs(6, 10, 60, 12, place)
    rotations = (interleaved, False)
    for part in (x[:, 3:8, :40], x[::2, :, 7:57:2], x.transpose(0, 1)[:6, :, 1:]):
        where = positions[: len(part)]
        alone = rotate(part.contiguous(), table, where, *rotations)
        _assert_same(rotate(part, table, where, *rotations), alone)
        apart = torch.stack([where, where], dim=1)[:, 1]
        spread = torch.stack([table, table], dim=3)[..., 0]
        _assert_same(rotate(part, spread, apart, *rotations), alone)


def _assert_same(found: Tensor, alone: Tensor) -> None:
    """In the interpreter bit by bit; a GPU's compiler may join other products with sums."""
    assert_alike(found, alone, "numbers that lie in another way")
    assert found.is_cuda or torch.equal(found, alone)


def _normed(x: Tensor, weight: Tensor, offset: float) -> Tensor:
    return (weight + offset) * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


@ONE_DTYPE_HERE
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("still", [0, 1, 24])
@pytest.mark.parametrize(("tokens", "heads", "dim"), SIZES)
@pytest.mark.parametrize("spread", [1.0, 1e-3, 100.0])
def test_queries_and_keys_are_normed_and_turned(
    place: Place,
    tokens: int,
    heads: int,
    dim: int,
    still: int,
    interleaved: bool,
    offset: float,
    spread: float,
) -> None:
    """Heads side by side in a projection, fewer of the keys or more."""
    from hybridrt.kernels.triton.rotate import rotate_normed

    qk, *where = _inputs(tokens, heads + 3, dim + still, dim // 2, place)
    weights = _inputs(2, 1, dim + still, 1, place)[0][:, 0].unbind(0)
    given = (spread * qk).split([heads, 3], dim=1)
    found = rotate_normed(*given, *weights, 1e-5, offset, *where, interleaved)
    table, positions = (part.cpu() for part in where)
    for x, weight, out in zip(given, weights, found, strict=True):
        assert out.dtype == place[1] and out.is_contiguous()
        x, weight = x.cpu(), weight.cpu()
        normed = _normed(x.double(), weight.double(), offset)
        exact = _turned(normed, table, positions, interleaved, False)
        if place[1] == torch.float32:
            assert_close(out, exact)
            continue
        coarse = reference_norm(x, weight, 1e-5, offset)
        assert_twice_at_most(
            out.cpu(), reference(coarse, table, positions, interleaved, False), exact
        )


def test_normed_heads_among_others(place: Place) -> None:
    """Elements with gaps, unlike ones of queries and keys, and results in the weights' dtypes."""
    from hybridrt.kernels.triton.rotate import rotate_normed

    x, table, positions = _inputs(6, 10, 60, 12, place)
    q, k = x[:, 3:8, 1:57:2], x[:, 1:3, 5:33]
    q_weight, k_weight = x[0, 0, :56:2], x[0, :, 3:59:2].float()[1]
    rest = (1e-5, 1.0, table, positions, False)
    found = rotate_normed(q, k, q_weight, k_weight, *rest)
    given = [part.contiguous() for part in (q, k, q_weight, k_weight)]
    for out, alone in zip(found, rotate_normed(*given, *rest), strict=True):
        _assert_same(out, alone)
    assert found[0].dtype == q_weight.dtype and found[1].dtype == torch.float32


def test_no_tokens_are_normed(place: Place) -> None:
    from hybridrt.kernels.triton.rotate import rotate_normed

    x, table, positions = _inputs(4, 3, 8, 4, place)
    rest = (x[0, 0], x[0, 1], 1e-5, 0.0, table, positions, False)
    q, k = rotate_normed(x, x[:, :0], *rest)
    assert q.shape == x.shape and q.isfinite().all() and k.shape == (4, 0, 8)
    q, k = rotate_normed(x[:, :0], x, *rest)
    assert k.shape == x.shape and k.isfinite().all() and q.shape == (4, 0, 8)
    none = rotate_normed(x[:0], x[:0], *rest[:-2], positions[:0], False)
    assert [part.shape for part in none] == [(0, 3, 8)] * 2


def test_nothing_to_turn(place: Place) -> None:
    from hybridrt.kernels.triton.rotate import rotate

    x, table, positions = _inputs(4, 3, 8, 4, place)
    assert rotate(x[:0], table, positions[:0], False, False).shape == (0, 3, 8)
    assert rotate(x[:, :0], table, positions, True, False).shape == (4, 0, 8)


@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("interleaved", [False, True])
def test_what_is_no_number_stays_in_its_pair(
    place: Place, interleaved: bool, number: float
) -> None:
    from hybridrt.kernels.triton.rotate import rotate

    x, *where = _inputs(2, 3, 10, 4, place)
    x[1, 2, 3] = number
    broken = ~rotate(x, *where, interleaved, False).isfinite()
    pair = [2, 3] if interleaved else [3, 7]
    assert broken.nonzero().tolist() == [[1, 2, element] for element in pair]
