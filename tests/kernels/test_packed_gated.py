"""Linear layers whose outputs gate each other: the same bits as by one kernel behind the other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrt.kernels.cpu import packed_gated as kernel
from hybridrt.kernels.cpu.packed_linear import AT_ONCE
from hybridrt.kernels.cpu.streams import FEWEST_BYTES
from hybridrt.kernels.cpu.vectors import HAS_VECTORS
from hybridrt.kernels.gated import gated
from hybridrt.kernels.linear import gated_linear
from hybridrt.layers.linear import FusedLinear
from hybridrt.layers.mlp import MLP
from tests.harness.properties import bounded

pytestmark = pytest.mark.skipif(not HAS_VECTORS, reason="the processor has no AVX2")


def make_layer(inputs: int, inner: int, bias: bool) -> FusedLinear:
    torch.manual_seed(inputs + inner)
    layer = FusedLinear(inputs, {"gate_proj": inner, "up_proj": inner}, bias).bfloat16()
    layer.weight.data.normal_()
    if layer.bias is not None:
        layer.bias.data.normal_()
    layer.pack()
    assert layer.blocked is not None
    return layer


@bounded(40)
@given(
    tokens=st.one_of(st.integers(1, kernel.MOST + 2), st.integers(kernel.MOST, 2 * AT_ONCE + 40)),
    pairs=st.integers(1, 150),
    inner=st.sampled_from([64, 192, 1024, 2048, 70]),  # runs of one block and of several; no block
    bias=st.booleans(),
)
def test_is_the_gated_product_bit_for_bit(tokens: int, pairs: int, inner: int, bias: bool) -> None:
    layer = make_layer(2 * pairs, inner, bias)
    x = torch.randn(tokens, 2 * pairs).bfloat16()
    found = gated_linear(x, layer.held, layer.bias, "silu")
    assert torch.equal(found, gated(layer(x), "silu"))


def test_values_that_are_streamed_are_those_of_each_alone() -> None:
    """One token's never are, neither by this kernel nor by the product before a gate."""
    layer = make_layer(96, FEWEST_BYTES // 2, bias=True)
    x = torch.randn(40, 96).bfloat16()
    alone = torch.cat([gated(layer(row[None]), "silu") for row in x])
    assert torch.equal(gated_linear(x, layer.held, layer.bias, "silu"), alone)


@pytest.mark.parametrize("tokens", [kernel.FEWEST, kernel.MOST])
def test_the_kernel_itself_takes_them(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN and infinities stay in their rows, and any shape is taken."""
    layer, calls = make_layer(94, 128, bias=False), []
    run = kernel.packed_gated
    monkeypatch.setattr(kernel, "packed_gated", lambda *args: calls.append(1) or run(*args))
    x = torch.randn(tokens, 188).bfloat16()[:, ::2]
    x[3, 5], x[7, 0] = torch.nan, torch.inf
    found = gated_linear(x[None], layer.held, None, "silu")[0]
    assert calls
    torch.testing.assert_close(found, gated(layer(x), "silu"), rtol=0, atol=0, equal_nan=True)
    assert found[3].isnan().all() and found[[0, 1, 2, 4, 5, 6, 8]].isfinite().all()


def test_a_layer_that_is_watched_is_called() -> None:
    mlp = MLP(96, 64).bfloat16()
    for parameter in mlp.parameters():
        parameter.data.normal_()
    mlp.gate_up_proj.pack()
    x, seen = torch.randn(40, 96).bfloat16(), []
    alone = mlp(x)
    mlp.gate_up_proj.register_forward_hook(lambda *call: seen.append(call[-1].shape))
    assert torch.equal(mlp(x), alone)
    assert seen == [(40, 128)]
