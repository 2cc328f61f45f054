"""Experts against a loop over tokens and their experts."""

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.moe import moe_experts
from hybridrt.kernels.reference.gates import Gating
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close, assert_right


def _definition(ids: Tensor, x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for t in range(len(x)):
        for j in range(ids.shape[1]):
            expert = int(ids[t, j])
            gate, up = (gate_up[expert] @ x[t]).chunk(2)
            inner = gate * torch.sigmoid(gate) * up
            out[t] += weights[t, j] * (down[expert] @ inner)
    return out


def _check(
    ids: Tensor,
    dtype: torch.dtype,
    device: str,
    experts: int,
    hidden: int = 48,
    inner: int = 40,
    seed: int = 0,
) -> None:
    draw = torch.Generator().manual_seed(seed)
    if dtype != torch.float32:  # enough values for the two-times rule, see `in_company`
        ids = torch.cat([ids, torch.randint(experts, (64, ids.shape[1]), generator=draw)])
    x = torch.randn(len(ids), hidden, generator=draw).to(dtype)
    gate_up = torch.randn(experts, 2 * inner, hidden, generator=draw).to(dtype) * hidden**-0.5
    down = torch.randn(experts, hidden, inner, generator=draw).to(dtype) * inner**-0.5
    weights = torch.rand(ids.shape, generator=draw)  # float32, as routers give them
    inputs = [part.to(device) for part in (x, gate_up, down, ids, weights)]
    out = moe_experts(*inputs)
    assert out.dtype == dtype
    assert_right(out, lambda *parts: _definition(ids, *parts), x, gate_up, down, weights)


@bounded(25)
@given(
    tokens=st.integers(1, 40),
    experts=st.integers(1, 9),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_equals_the_sum_over_each_tokens_experts(
    device: str, dtype: torch.dtype, tokens: int, experts: int, seed: int, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, experts))
    draw = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(experts, generator=draw)[:top_k] for _ in range(tokens)])
    _check(ids, dtype, device, experts, seed=seed)


@pytest.mark.parametrize(
    "ids",
    [
        [[3]],  # one token, one expert of many
        [[0, 1, 2, 3]],  # all of them
        [[2]] * 50,  # one expert gets everything
        [[7, 0]] * 3 + [[0, 7]] * 3,  # only the first and the last
    ],
    ids=["one", "all", "crowded", "ends"],
)
def test_extreme_routings(device: str, dtype: torch.dtype, ids: list[list[int]]) -> None:
    _check(torch.tensor(ids), dtype, device, experts=8)


SIZES = [(1, 1), (7, 3), (64, 33), (32, 32), (96, 160)]  # numba has those of whole vectors


@pytest.mark.parametrize(("hidden", "inner"), SIZES)
@pytest.mark.parametrize("tokens", [1, 3, 30])
def test_sizes(device: str, dtype: torch.dtype, hidden: int, inner: int, tokens: int) -> None:
    ids = torch.tensor([[0, 2], [1, 2], [4, 0]]).repeat(-(-tokens // 3), 1)[:tokens]
    _check(ids, dtype, device, experts=5, hidden=hidden, inner=inner)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    draw = torch.Generator().manual_seed(threads)
    x = torch.randn(40, 96, generator=draw).bfloat16()
    gate_up, down = (
        torch.randn(shape, generator=draw).bfloat16() for shape in ((4, 320, 96), (4, 96, 160))
    )
    ids = torch.stack([torch.randperm(4, generator=draw)[:2] for _ in range(40)])
    weights = torch.rand(40, 2, generator=draw)
    alone = moe_experts(x, gate_up, down, ids, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba, "get_num_threads", lambda: threads)
        assert torch.equal(moe_experts(x, gate_up, down, ids, weights), alone)


@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_expert_that_is_not_there_is_an_error(wrong: int) -> None:
    gate_up, down = torch.zeros(4, 64, 32).bfloat16(), torch.zeros(4, 32, 32).bfloat16()
    ids, weights = torch.tensor([[0, 1], [2, wrong]]), torch.ones(2, 2)
    with pytest.raises(IndexError, match=r"expert ids should be 0 \.\. 3"):
        moe_experts(torch.zeros(2, 32).bfloat16(), gate_up, down, ids, weights)


def _gated(values: Tensor, gating: str, alpha: float, limit: float) -> Tensor:
    if gating.startswith("clamped"):
        gate, up = values.chunk(2) if gating.endswith("halves") else (values[0::2], values[1::2])
        gate, up = torch.minimum(gate, torch.tensor(limit)), up.clamp(-limit, limit)
        return gate / (1 + torch.exp(-alpha * gate)) * (up + 1)
    gate, up = values.chunk(2)
    if gating.endswith("by turns"):
        gate, up = values[0::2], values[1::2]
    if gating.startswith("bent"):
        bent = alpha * torch.tanh(gate / alpha) / (1 + torch.exp(-gate))
        return bent * limit * torch.tanh(up / limit)
    if gating == "limited":
        gate, up = torch.minimum(gate, torch.tensor(limit)), up.clamp(-limit, limit)
    if gating.startswith(("silu", "limited")):
        return gate * torch.sigmoid(gate) * up
    if gating == "gelu":
        return 0.5 * gate * (1 + torch.erf(gate / 2**0.5)) * up
    cube = gate + 0.044715 * gate**3  # GELU by tanh, arXiv 1606.08415
    return 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * cube)) * up


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize(
    "gating",
    [
        *("silu", "gelu", "gelu_pytorch_tanh", "silu by turns", "bent by turns"),
        *("clamped", "clamped halves", "limited"),
    ],
)
@pytest.mark.parametrize("tokens", [40, 200])  # few and many, which a GPU treats unlike
@pytest.mark.parametrize(("hidden", "inner"), [(24, 16), (32, 64)])
def test_gates_and_biases(
    device: str,
    dtype: torch.dtype,
    tokens: int,
    hidden: int,
    inner: int,
    gating: Gating,
    biased: bool,
) -> None:
    draw = torch.Generator().manual_seed(tokens)
    experts, (alpha, limit) = 6, (1.3, 0.8)
    shapes = [(tokens, hidden), (experts, 2 * inner, hidden), (experts, hidden, inner)]
    shapes += [(experts, 2 * inner), (experts, hidden)]
    parts = [torch.randn(s, generator=draw).mul_(s[-1] ** -0.5 * 2).to(dtype) for s in shapes]
    ids = torch.stack([torch.randperm(experts, generator=draw)[:2] for _ in range(tokens)])
    weights = torch.rand(ids.shape, generator=draw)

    def definition(
        x: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor, down_bias: Tensor
    ) -> Tensor:
        out = torch.zeros_like(x)
        for t, j in torch.cartesian_prod(torch.arange(tokens), torch.arange(2)).tolist():
            e = int(ids[t, j])
            values = gate_up[e] @ x[t] + biased * gate_up_bias[e]
            result = down[e] @ _gated(values, gating, alpha, limit) + biased * down_bias[e]
            out[t] += weights[t, j].to(x.dtype) * result
        return out

    x, gate_up, down, *biases = (part.to(device) for part in parts)
    gate_up_bias, down_bias = biases if biased else (None, None)
    rest = (ids.to(device), weights.to(device), gate_up_bias, down_bias, gating, alpha, limit)
    assert_right(moe_experts(x, gate_up, down, *rest), definition, *parts)


def test_a_tokens_result_does_not_depend_on_the_others(device: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    x, gate_up, down = (
        torch.randn(shape, generator=draw).to(device, dtype)
        for shape in ((30, 32), (6, 64, 32), (6, 32, 32))
    )
    ids = torch.stack([torch.randperm(6, generator=draw)[:2] for _ in range(30)]).to(device)
    weights = torch.rand(30, 2, generator=draw).to(device)
    together = moe_experts(x, gate_up, down, ids, weights)
    for t in range(30):
        token = slice(t, t + 1)
        alone = moe_experts(x[token], gate_up, down, ids[token], weights[token])
        if dtype is torch.bfloat16 and device == "cpu":
            assert torch.equal(alone, together[token])  # numba's order of sums is one
        elif dtype is torch.float32:
            assert_close(alone, together[token].cpu())
