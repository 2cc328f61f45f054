"""Experts in Triton against a loop over tokens and their experts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrt.kernels.reference.gates import Gating
from tests.harness.tolerance import assert_right
from tests.kernels import test_moe as experts
from tests.kernels.triton.conftest import ONE_DTYPE_HERE

Place = tuple[str, torch.dtype]


@pytest.fixture(autouse=True, params=["few", "sorted", "grouped"])
def _put_in(request: pytest.FixtureRequest, put_in: Any, place: Place) -> None:
    from hybridrt.kernels.triton.few_experts import few_experts
    from hybridrt.kernels.triton.grouped_moe import grouped_experts
    from hybridrt.kernels.triton.moe import moe_experts

    if request.param == "grouped" and place[0] == "cuda" and place[1] != torch.bfloat16:
        pytest.skip("torch's grouped product is for bfloat16 there")
    kernels = {"few": few_experts, "sorted": moe_experts, "grouped": grouped_experts}
    put_in(experts, "moe_experts", kernels[request.param])


NOT_GROUPED = pytest.mark.parametrize("_put_in", ["few", "sorted"], indirect=True)
"""For rows that aren't whole 16 bytes, of which torch's grouped product takes none."""


@ONE_DTYPE_HERE
@pytest.mark.parametrize("seed", range(4))
def test_random_routings(place: Place, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    tokens, count = (int(torch.randint(1, most, (), generator=draw)) for most in (40, 9))
    top_k = int(torch.randint(1, count + 1, (), generator=draw))
    ids = [torch.randperm(count, generator=draw)[:top_k] for _ in range(tokens)]
    experts._check(torch.stack(ids), place[1], place[0], count, seed=seed)


@ONE_DTYPE_HERE
@pytest.mark.parametrize(
    "ids",
    [[[3]], [[0, 1, 2, 3]], [[2]] * 50, [[7, 0]] * 3 + [[0, 7]] * 3],
    ids=["one", "all", "crowded", "ends"],
)
def test_extreme_routings(place: Place, ids: list[list[int]]) -> None:
    experts._check(torch.tensor(ids), place[1], place[0], experts=8)


@ONE_DTYPE_HERE
@pytest.mark.parametrize("_put_in", ["sorted", "grouped"], indirect=True)
@pytest.mark.parametrize(("hidden", "inner"), [(64, 128), (72, 136)], ids=["whole", "ragged"])
def test_many_tokens_of_an_expert(place: Place, hidden: int, inner: int) -> None:
    """Whole tiles, one of more than half and one of less, and an expert without any."""
    ids = torch.tensor([[0]] * 136 + [[1]] * 60 + [[3]] * 70)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    experts._check(ids[order], place[1], place[0], experts=4, hidden=hidden, inner=inner)


@ONE_DTYPE_HERE
@pytest.mark.parametrize("_put_in", ["sorted"], indirect=True)
@pytest.mark.parametrize("gating", ["silu", "silu by turns", "clamped halves"])
def test_programs_of_several_blocks(
    place: Place, monkeypatch: pytest.MonkeyPatch, gating: Gating
) -> None:
    from hybridrt.kernels.triton import moe

    for name in ("FEW", "FEW_OF_FLOAT32"):
        monkeypatch.setattr(moe, name, moe.Tiles(16, 32, 16, blocks=2, warps=4, stages=3))
    experts.test_gates_and_biases(place[0], place[1], 40, 128, 64, gating, True)


@ONE_DTYPE_HERE
@NOT_GROUPED
@pytest.mark.parametrize(("hidden", "inner"), [(1, 1), (7, 3), (70, 130)])
@pytest.mark.parametrize("tokens", [1, 3])
def test_odd_sizes(place: Place, hidden: int, inner: int, tokens: int) -> None:
    experts.test_sizes(place[0], place[1], hidden, inner, tokens)


@ONE_DTYPE_HERE
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize(
    "gating",
    [
        *("silu", "gelu_pytorch_tanh", "silu by turns", "bent by turns"),
        *("clamped", "clamped halves", "limited"),
    ],
)
def test_gates_and_biases(place: Place, gating: Gating, biased: bool, tokens: int) -> None:
    experts.test_gates_and_biases(place[0], place[1], tokens, 24, 16, gating, biased)


def test_gelu_without_tanh(place: Place) -> None:
    """It has no definition there."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((9, 24), (3, 32, 24), (3, 24, 16))
    x, gate_up, down = (torch.randn(shape, generator=draw).to(place[0]) for shape in shapes)
    ids = torch.randint(3, (9, 1), generator=draw).to(place[0])
    out = experts.moe_experts(x, gate_up, down, ids, torch.ones_like(ids).float(), gating="gelu")
    gate, up = torch.einsum("th,toh->to", x, gate_up[ids[:, 0]]).chunk(2, dim=1)
    inner = torch.nn.functional.gelu(gate) * up
    expected = torch.einsum("ti,thi->th", inner, down[ids[:, 0]])
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@NOT_GROUPED
def test_rows_among_others(place: Place) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = ((9, 60), (5, 60, 32), (5, 16, 48), (20, 4))
    x, gate_up, down, ids = (torch.randn(shape, generator=draw).to(place[0]) for shape in shapes)
    x, gate_up, down = x.to(place[1]), gate_up.to(place[1]), down.to(place[1])
    apart = (x[:, 12:36], gate_up[:, 20:52, :24], down.transpose(1, 2)[:, ::2, :])
    ids, weights = ids.argsort(1)[::2][:9, 1:3], ids[2:11, ::2]
    out = experts.moe_experts(*apart, ids, weights)
    alone = experts.moe_experts(
        *(part.contiguous() for part in apart), ids.contiguous(), weights.contiguous()
    )
    assert torch.equal(out, alone)


def test_no_tokens(place: Place) -> None:
    x, gate_up, down = (torch.zeros(shape).to(*place) for shape in ((0, 8), (3, 16, 8), (3, 8, 8)))
    ids, weights = torch.zeros(0, 2).long().to(place[0]), torch.zeros(0, 2).to(place[0])
    assert experts.moe_experts(x, gate_up, down, ids, weights).shape == (0, 8)


@pytest.mark.parametrize("tokens", [1, 3, 70])
def test_contracts_on_a_gpu(place: Place, tokens: int) -> None:
    from hybridrt.kernels import moe, relu2_moe

    draw = torch.Generator().manual_seed(tokens)
    shapes = ((tokens, 32), (6, 48, 32), (6, 32, 24), (6, 32, 48))
    x, up, down, wide = (torch.randn(shape, generator=draw).to(*place) for shape in shapes)
    ids = torch.stack([torch.randperm(6, generator=draw)[:2] for _ in range(tokens)])
    routed = ids.to(place[0]), torch.rand(tokens, 2, generator=draw).to(place[0])

    def definition(x: Tensor, up: Tensor, down: Tensor, wide: Tensor, weights: Tensor) -> Tensor:
        both = [torch.zeros_like(x), torch.zeros_like(x)]
        for t, j in torch.cartesian_prod(torch.arange(tokens), torch.arange(2)).tolist():
            e = int(ids[t, j])
            gate, rest = (up[e] @ x[t]).chunk(2)
            both[0][t] += weights[t, j] * (down[e] @ (gate * torch.sigmoid(gate) * rest))
            both[1][t] += weights[t, j] * (wide[e] @ torch.relu(up[e] @ x[t]).square())
        return torch.cat(both)

    out = moe._moe_experts_on_gpu(x, up, down, *routed)
    squared = relu2_moe._relu2_experts_on_gpu(x, up, wide, *routed)
    assert_right(torch.cat([out, squared]), definition, x, up, down, wide, routed[1])
