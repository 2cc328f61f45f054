"""Feed-forward layers without gates, against plain loops."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.relu2_moe import relu2_experts
from hybridrt.layers.moe import MoEConfig
from hybridrt.layers.relu2 import Relu2Experts, Relu2MLP, Relu2MoE
from tests.harness.random_weights import randomise
from tests.harness.tolerance import assert_close, assert_right

SIZES = MoEConfig(
    hidden_size=24,
    moe_intermediate_size=10,
    num_experts=5,
    num_experts_per_tok=3,
    scoring_func="sigmoid",
    routed_scaling_factor=2.5,
    correction_bias=True,
    shared_intermediate_size=14,
    shared_bias=True,
)


def _loops(x: Tensor, up: Tensor, down: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for t in range(len(x)):
        for e, weight in zip(ids[t].tolist(), weights[t], strict=True):
            out[t] += weight * (down[e] @ (up[e] @ x[t]).clamp(min=0).square())
    return out


@pytest.mark.parametrize("num_tokens", [1, 2, 17, 80])
def test_experts_are_those_of_plain_loops(num_tokens: int) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(num_tokens, 24), torch.rand(num_tokens, 3)
    up, down = torch.randn(5, 10, 24), torch.randn(5, 24, 10)
    ids = torch.stack([torch.randperm(5)[:3] for _ in range(num_tokens)])
    given = relu2_experts(x, up, down, ids, weights)
    assert_close(given, _loops(x, up, down, ids, weights))
    op = torch.ops.hybridrt.stacked_relu2_experts.default
    assert torch.equal(op(x, up, down, ids, weights), given)
    checks = ["test_schema", "test_faketensor"]
    torch.library.opcheck(op, (x, up, down, ids, weights), test_utils=checks)


@pytest.mark.parametrize("num_tokens", [1, 17, 80])
def test_experts_of_bfloat16_are_as_near_as_plain_loops(num_tokens: int) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(num_tokens, 64).bfloat16(), torch.rand(num_tokens, 3)
    up, down = (torch.randn(s).mul_(s[-1] ** -0.5).bfloat16() for s in ((5, 32, 64), (5, 64, 32)))
    ids = torch.stack([torch.randperm(5)[:3] for _ in range(num_tokens)])
    given = relu2_experts(x, up, down, ids, weights)
    assert_right(given, lambda *parts: _loops(*parts[:3], ids, parts[3]), x, up, down, weights)


@pytest.mark.parametrize("latent_size", [None, 7])
def test_routed_and_shared_experts_add_up(latent_size: int | None) -> None:
    layer = Relu2MoE(SIZES, latent_size)
    randomise(layer)
    x = torch.randn(9, 24, generator=torch.Generator().manual_seed(1))
    ids, weights = layer.gate(x)
    latent = x if layer.fc1_latent_proj is None else layer.fc1_latent_proj(x)
    out = _loops(latent, layer.experts.up_proj, layer.experts.down_proj, ids, weights)
    out = out if layer.fc2_latent_proj is None else layer.fc2_latent_proj(out)
    shared = layer.shared_experts
    assert isinstance(shared, Relu2MLP)
    up, down = shared.up_proj, shared.down_proj
    inner = F.relu(F.linear(x, up.weight, up.bias)).square()
    assert_close(layer(x), out + F.linear(inner, down.weight, down.bias))


def test_both_layouts_of_a_checkpoint_are_views_of_the_same_weights() -> None:
    experts = Relu2Experts(3, 4, 5)
    split, stacked = experts.checkpoint_layouts()
    assert list(stacked) == ["experts.up_proj", "experts.down_proj"]
    assert len(split) == 6
    for name, matrix in split.items():
        _, e, projection, _ = name.split(".")
        assert matrix.data_ptr() == stacked[f"experts.{projection}"][int(e)].data_ptr()
