"""Routers in Triton against those in plain torch."""

import pytest
import torch
from torch import Tensor

from hybridrt.kernels.reference import route as reference
from hybridrt.kernels.reference.route import GroupScore, Routing, Scores
from tests.harness.tolerance import assert_close
from tests.kernels.triton.conftest import ONE_DTYPE_HERE

Place = tuple[str, torch.dtype]


def _route(
    x: Tensor, weight: Tensor, bias: Tensor | None, routing: Routing
) -> tuple[Tensor, Tensor]:
    from hybridrt.kernels.triton.route import route

    return route(x, weight, bias, routing)


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, routing: Routing) -> None:
    ids, weights = _route(x, weight, bias, routing)
    cpu = (part if part is None else part.cpu() for part in (x, weight, bias))
    right_ids, right_weights = reference.route(*cpu, routing)
    assert ids.dtype == torch.int64 and weights.dtype == torch.float32
    assert torch.equal(ids.cpu(), right_ids)
    assert_close(weights, right_weights.double())


@ONE_DTYPE_HERE
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normed", [False, True], ids=["as they are", "normed"])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize(
    ("tokens", "experts", "hidden", "top_k"),
    [(1, 1, 1, 1), (3, 40, 5, 7), (17, 64, 600, 6), (65, 9, 33, 9), (2, 700, 40, 10)],
)
def test_equals_the_reference(
    place: Place,
    tokens: int,
    experts: int,
    hidden: int,
    top_k: int,
    scores: Scores,
    normed: bool,
    biased: bool,
) -> None:
    x, weight = _normal(tokens, hidden, seed=0), _normal(experts, hidden, seed=1) * hidden**-0.5
    bias = _normal(experts, seed=2).to(place[0]) if biased else None
    routing = Routing(top_k, scores, normed, 1e-20, 2.5)
    _check(x.to(*place), weight.to(*place), bias, routing)


def test_a_float32_router(place: Place) -> None:
    x, weight = _normal(5, 100, seed=0).to(*place), _normal(20, 100, seed=1).to(place[0])
    _check(x, weight, None, Routing(4, "softmax", True, 1e-20, 1.0))


@pytest.mark.parametrize("group_score", ["max", "top2"])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("outside", [float("-inf"), 0.0])
@pytest.mark.parametrize(("experts", "groups", "best"), [(40, 5, 2), (64, 8, 4), (6, 3, 3)])
def test_groups(
    place: Place,
    group_score: GroupScore,
    biased: bool,
    outside: float,
    experts: int,
    groups: int,
    best: int,
) -> None:
    x, weight = _normal(9, 48, seed=0), _normal(experts, 48, seed=1) * 48**-0.5
    bias = _normal(experts, seed=2).abs().to(place[0]) if biased else None
    routing = Routing(4, "sigmoid", True, 1e-20, 2.5, groups, best, group_score, outside)
    _check(x.to(*place), weight.to(*place), bias, routing)


def test_fewer_experts_in_the_best_groups_than_are_asked_for(place: Place) -> None:
    x, weight = _normal(3, 32, seed=0).to(*place), _normal(8, 32, seed=1).to(*place)
    routing = Routing(4, "sigmoid", True, 1e-20, 1.0, n_group=4, topk_group=1)
    ids, weights = _route(x, weight, None, routing)
    assert all(len(set(row)) == 4 for row in ids.tolist())
    assert (ids[:, 0] // 2 == ids[:, 1] // 2).all()
    assert (weights[:, 2:] == 0).all()
    assert_close(weights.sum(1), torch.ones(3))


def test_of_equal_experts_the_first_is_chosen(place: Place) -> None:
    x, weight = torch.ones(2, 16).to(*place), torch.zeros(9, 16).to(*place)
    weight[7] = 1
    ids, _ = _route(x, weight, None, Routing(4, "softmax", True, 1e-20, 1.0))
    assert ids.tolist() == [[7, 0, 1, 2]] * 2


@ONE_DTYPE_HERE
@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    "logits",
    [
        *([0.0] * 6, [1, 1, 1, 0, 0, 0], [0, 2, 1, 2, 3, 4], [0, 2, 1, 3, 1, 4]),
        *([5, 4, 3, 2, 1, 0], [-torch.inf, 0, -torch.inf, 1, 2, -torch.inf]),
        [0.0, -0.0, 1, 0.0, -0.0, -1],
    ],
    ids=str,
)
def test_the_first_of_equals_wherever_they_are(
    place: Place, logits: list[float], top_k: int
) -> None:
    x, weight = torch.zeros(2, 16).to(*place), torch.zeros(6, 16).to(*place)
    x[:, 0], weight[:, 0] = 1, torch.tensor(logits).clamp(min=-6e4)
    ids, weights = _route(x, weight, None, Routing(top_k, "softmax", False, 1e-20, 1.0))
    order = torch.tensor(logits).sort(descending=True, stable=True).indices[:top_k]
    assert ids.tolist() == [order.tolist()] * 2
    assert_close(weights, torch.tensor(logits).double().softmax(0)[order].expand(2, -1))


def test_large_logits(place: Place) -> None:
    x, weight = _normal(4, 32, seed=0) * 100, _normal(12, 32, seed=1) * 100
    for scores in ("softmax", "sigmoid"):
        ids, weights = _route(
            x.to(*place), weight.to(*place), None, Routing(3, scores, True, 1e-20, 1.0)
        )
        assert weights.isfinite().all()
        best = (x.to(place[1]).float() @ weight.to(place[1]).float().t()).argmax(1)
        if scores == "softmax":
            assert torch.equal(ids[:, 0].cpu(), best)


def test_what_is_no_number_has_experts_all_the_same(place: Place) -> None:
    """A row that is padding may hold anything; whoever reads its experts must find some."""
    x, weight = torch.full((3, 32), torch.nan).to(*place), _normal(12, 32, seed=1).to(*place)
    ids, _ = _route(x, weight, None, Routing(3, "softmax", True, 1e-20, 1.0))
    assert ids.tolist() == [[0, 1, 2]] * 3


@pytest.mark.usefixtures("rows_alike")
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_a_tokens_experts_do_not_depend_on_the_others(place: Place, scores: Scores) -> None:
    x, weight = _normal(40, 600, seed=0).to(*place), _normal(30, 600, seed=1).to(*place)
    routing = Routing(4, scores, True, 1e-20, 1.0)
    ids, weights = _route(x, weight, None, routing)
    for t in (0, 17, 39):
        alone = _route(x[t : t + 1], weight, None, routing)
        assert torch.equal(alone[0][0], ids[t]) and torch.equal(alone[1][0], weights[t])


def test_rows_among_others(place: Place) -> None:
    wide, weights = _normal(12, 80, seed=0).to(*place), _normal(40, 20, seed=1).to(*place)
    routing = Routing(4, "softmax", True, 1e-20, 1.0)
    _check(wide[::2, 3:43], weights.t(), None, routing)


def test_no_tokens(place: Place) -> None:
    weight = _normal(12, 32, seed=1).to(*place)
    ids, weights = _route(weight[:0], weight, None, Routing(3, "softmax", True, 1e-20, 1.0))
    assert ids.shape == weights.shape == (0, 3)
