"""Linear layers, fused ones and the MLP."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from hybridrt.engine.slots import parameter_slots
from hybridrt.introspection.readable import as_loaded, layouts_of, read_slot
from hybridrt.kernels.quantised_linear import Bits
from hybridrt.layers.linear import FusedLinear, Linear, by_kind, project_each
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


def test_rows_of_heads_are_sorted_by_kind() -> None:
    assert by_kind(2, [1, 3]).tolist() == [0, 4, 1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_that_are_sorted_are_still_those_of_the_checkpoint(
    bias: bool, packs: bool, dtype: torch.dtype
) -> None:
    """And outputs are in their order before and after."""
    parts = {"qz_proj": 512, "k_proj": 65}
    order = torch.cat([by_kind(4, [96, 32]), 512 + 64 - torch.arange(65)])
    fused, plain = (FusedLinear(512, parts, bias, order=given) for given in (order, None))
    for layer in (fused, plain):
        randomise(layer)
        layer.to(dtype)
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(9)).to(dtype)
    before = fused(x)
    loaded = {name: rows.clone() for name, rows in layouts_of(fused)[0].items()}
    assert torch.equal(before, plain(x)[:, order])
    fused.sort()
    fused.sort()  # once is enough
    if packs:
        fused.pack()
    own = [parameter.detach() for parameter in plain.parameters()]
    assert_right(fused(x), lambda x, *own: _product_and_sum(x, *own)[:, order], x, *own)
    (kept,) = layouts_of(fused)
    assert list(kept) == list(loaded)
    assert all(torch.equal(kept[name], loaded[name]) for name in loaded)
    rows = torch.arange(100, 140)
    assert torch.equal(before[:, fused.places_of(rows)], plain(x)[:, rows])


@pytest.mark.parametrize("inputs", [48, 47])
def test_a_packed_weight_can_be_read_again(inputs: int) -> None:
    layer = Linear(inputs, 70).bfloat16()
    randomise(layer)
    weight = layer.weight.detach().clone()
    layer.pack()
    with as_loaded(layer):
        (slot,) = parameter_slots(layer, [])
    read = read_slot(slot)
    assert read is not None and torch.equal(read, weight)


@pytest.mark.parametrize("bias", [False, True])
def test_the_mlp_is_swiglu(bias: bool) -> None:
    mlp = MLP(8, 20, bias)
    randomise(mlp)
    x = torch.randn(7, 8, generator=torch.Generator().manual_seed(9))
    gate, up = mlp.gate_up_proj(x).chunk(2, dim=-1)
    assert_close(mlp(x), mlp.down_proj(silu(gate) * up))
    assert list(mlp.gate_up_proj.parts) == ["gate_proj", "up_proj"]


@pytest.mark.parametrize("bits", [None, 8])
def test_layers_on_one_input_give_what_each_of_them_gives(bits: Bits | None) -> None:
    layers = Linear(64, 33, bias=True), Linear(64, 7)
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(1))
    for layer in layers:
        randomise(layer)
        layer.pack(bits)
    expected = [layer(x) for layer in layers]
    for found, right in zip(project_each(x, *layers), expected, strict=True):
        assert torch.equal(found, right)


def test_a_layer_that_somebody_watches_is_called() -> None:
    layers, seen = (Linear(8, 3), Linear(8, 2)), list[tuple[int, ...]]()
    for layer in layers:
        randomise(layer)
    handle = layers[1].register_forward_hook(lambda *call: seen.append(call[2].shape))
    project_each(torch.ones(1, 8), *layers)
    assert seen == [(1, 2)]
    handle.remove()
    layers[0].forward = lambda x: x[..., :3]
    assert project_each(torch.ones(1, 8), *layers)[0].eq(1).all()
