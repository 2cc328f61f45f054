"""Routers in numba against those in plain torch; those are held against their papers by layers."""

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrt.kernels.reference import route as reference
from hybridrt.kernels.reference.route import Routing, Scores
from hybridrt.kernels.route import FEW_TOKENS, route
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close


@bounded(40)
@given(
    tokens=st.integers(0, FEW_TOKENS + 1),
    experts=st.integers(1, 40),
    hidden=st.sampled_from([1, 5, 32, 100]),
    scores=st.sampled_from(["softmax", "sigmoid"]),
    normed=st.booleans(),
    biased=st.booleans(),
    weight_dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_equals_the_reference(
    dtype: torch.dtype,
    tokens: int,
    experts: int,
    hidden: int,
    scores: Scores,
    normed: bool,
    biased: bool,
    weight_dtype: torch.dtype,
    seed: int,
    data: st.DataObject,
) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=draw).to(dtype)
    weight = torch.randn(experts, hidden, generator=draw).mul_(hidden**-0.5).to(weight_dtype)
    bias = torch.randn(experts, generator=draw) if biased else None
    routing = Routing(data.draw(st.integers(1, experts)), scores, normed, 1e-20, 2.5)
    ids, weights = route(x, weight, bias, routing)
    right_ids, right_weights = reference.route(x, weight, bias, routing)
    assert ids.dtype == torch.int64 and weights.dtype == torch.float32
    assert torch.equal(ids, right_ids)
    if tokens:
        assert_close(weights, right_weights.double())


@pytest.mark.parametrize(("tokens", "experts"), [(9, 40), (9, 2000), (131, 40), (130, 200)])
def test_a_tokens_experts_do_not_depend_on_the_others(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tokens: int, experts: int
) -> None:
    """Nor on the threads that share experts, if there are many, or tokens."""
    monkeypatch.setattr(numba, "get_num_threads", lambda: 3)
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(tokens, 96, generator=draw), torch.randn(experts, 96, generator=draw)
    x, weight = x.to(dtype), weight.to(dtype)
    routing = Routing(4, "softmax", True, 1e-20, 1.0)
    ids, weights = route(x, weight, None, routing)
    for t in range(len(x)):
        alone = route(x[t : t + 1], weight, None, routing)
        assert torch.equal(alone[0][0], ids[t]) and torch.equal(alone[1][0], weights[t])


def test_groups_are_left_to_the_reference() -> None:
    x, weight = torch.randn(3, 32), torch.randn(8, 32)
    routing = Routing(2, "sigmoid", True, 1e-20, 1.0, n_group=4, topk_group=1)
    ids, _ = route(x, weight, None, routing)
    assert (ids[:, 0] // 2 == ids[:, 1] // 2).all()
