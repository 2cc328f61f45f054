"""Linear layers, fused ones and the MLP."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from hybridrt.layers.linear import FusedLinear, Linear
from hybridrt.layers.mlp import MLP
from tests.harness.random_weights import randomise
from tests.harness.tolerance import assert_close, assert_right

PARTS = {"q_proj": 12, "k_proj": 5, "v_proj": 1}


def _product_and_sum(x: Tensor, weight: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    return (x[:, None] * weight).sum(-1) + bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 7, 65])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_is_a_product_and_a_sum(bias: bool, tokens: int, dtype: torch.dtype) -> None:
    layer = Linear(48, 33, bias)
    randomise(layer)
    layer.to(dtype)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, 48, generator=draw).to(dtype)
    out = layer(x)
    assert out.dtype == dtype
    parameters = [parameter.detach() for parameter in layer.parameters()]
    assert_right(out, _product_and_sum, x, *parameters)


@pytest.mark.parametrize("bias", [False, True])
def test_a_fused_layer_is_its_parts_side_by_side(bias: bool) -> None:
    fused = FusedLinear(8, PARTS, bias)
    (layout,) = fused.checkpoint_layouts()
    kinds = ("weight", "bias") if bias else ("weight",)
    assert set(layout) == {f"{part}.{kind}" for part in PARTS for kind in kinds}
    parts: list[Linear] = []
    for seed, (name, size) in enumerate(PARTS.items()):
        parts.append(Linear(8, size, bias))
        randomise(parts[-1], seed)
        for kind, parameter in parts[-1].named_parameters():
            layout[f"{name}.{kind}"].copy_(parameter)
    x = torch.randn(7, 8, generator=torch.Generator().manual_seed(9))
    assert_close(fused(x), torch.cat([part(x) for part in parts], dim=-1))


@pytest.mark.parametrize("bias", [False, True])
def test_a_fused_layer_may_be_one_in_a_checkpoint_too(bias: bool) -> None:
    fused = FusedLinear(8, PARTS, bias, fused="qkv_proj")
    split, whole = fused.checkpoint_layouts()
    assert set(whole) == {f"qkv_proj.{kind}" for kind, _ in fused.named_parameters()}
    for kind, parameter in fused.named_parameters():
        parts = torch.cat([split[f"{part}.{kind}"] for part in PARTS])
        assert whole[f"qkv_proj.{kind}"].shape == parts.shape == parameter.shape
        whole[f"qkv_proj.{kind}"].fill_(3)
        assert parameter.eq(3).all()


@pytest.mark.parametrize("bias", [False, True])
def test_the_mlp_is_swiglu(bias: bool) -> None:
    mlp = MLP(8, 20, bias)
    randomise(mlp)
    x = torch.randn(7, 8, generator=torch.Generator().manual_seed(9))
    gate, up = mlp.gate_up_proj(x).chunk(2, dim=-1)
    assert_close(mlp(x), mlp.down_proj(silu(gate) * up))
    assert list(mlp.gate_up_proj.parts) == ["gate_proj", "up_proj"]
