"""Experts whose matrices lie in blocks: the same products as of plain ones."""

import subprocess
import sys
from pathlib import Path

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrt.introspection.readable import layouts_of
from hybridrt.kernels.blocked_matrices import BlockedMatrices, can_block
from hybridrt.kernels.moe import moe_experts
from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.reference.relu2_moe import relu2_experts as definition_of_relu2
from hybridrt.kernels.relu2_moe import relu2_experts
from hybridrt.layers.moe import Experts, MoEConfig
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_right

from .expert_parts import GATES, assert_is_the_definition, make_biases, make_parts

SQUARE = torch.zeros(1, 64, 64).bfloat16()
blocks = pytest.mark.skipif(not can_block(SQUARE), reason="no AVX2 on this processor")


@blocks
@bounded(40)
@given(
    seed=st.integers(0, 2**16),
    tokens=st.sampled_from([1, 2, 6, 7, 48, 49, 130]),
    experts=st.integers(1, 6),
    hidden=st.sampled_from([64, 192, 640]),
    inner=st.sampled_from([64, 128, 640]),
    gating=st.sampled_from(GATES),
    biased=st.booleans(),
    data=st.data(),
)
def test_is_the_definition(
    seed: int,
    tokens: int,
    experts: int,
    hidden: int,
    inner: int,
    gating: Gating,
    biased: bool,
    data: st.DataObject,
) -> None:
    top_k = data.draw(st.integers(1, experts))
    x, *stacks, ids, weights = make_parts(seed, tokens, experts, top_k, hidden, inner)
    biases = make_biases(*stacks) if biased else []
    blocked = [BlockedMatrices(part) for part in stacks]
    assert_is_the_definition(x, blocked, stacks, ids, weights, biases, gating)


@blocks
@pytest.mark.parametrize("tokens", [1, 5, 80])
def test_without_gates_too(tokens: int) -> None:
    x, gate_up, down, ids, weights = make_parts(0, tokens, 4, 2, 128, 64)
    up = gate_up[:, :64].contiguous()
    out = relu2_experts(x, BlockedMatrices(up), BlockedMatrices(down), ids, weights)
    assert_right(out, lambda *parts: definition_of_relu2(*parts, ids, weights), x, up, down)


@blocks
@pytest.mark.parametrize("gating", ["silu", "silu by turns"])
def test_a_token_gets_the_same_bits_beside_others_and_on_any_threads(gating: Gating) -> None:
    x, gate_up, down, ids, weights = make_parts(1, 60, 5, 3, 128, 192)
    blocked = [BlockedMatrices(part) for part in (gate_up, down)]
    together = moe_experts(x, *blocked, ids, weights, gating=gating)
    for t in range(len(x)):
        token = slice(t, t + 1)
        alone = moe_experts(x[token], *blocked, ids[token], weights[token], gating=gating)
        assert torch.equal(alone, together[token])
    for threads in (2, 3, 5):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(numba, "get_num_threads", lambda count=threads: count)
            shared = moe_experts(x, *blocked, ids, weights, gating=gating)
        assert torch.equal(shared, together)


@blocks
@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_expert_that_is_not_there_is_an_error(wrong: int) -> None:
    x, gate_up, down, _, _ = make_parts(0, 2, 4, 2, 64, 64)
    ids, weights = torch.tensor([[0, 1], [2, wrong]]), torch.ones(2, 2)
    with pytest.raises(IndexError, match=r"expert ids should be 0 \.\. 3"):
        moe_experts(x, BlockedMatrices(gate_up), BlockedMatrices(down), ids, weights)


@blocks
def test_packing_blocks_what_has_whole_blocks_and_it_can_be_read_again() -> None:
    for inner, is_blocked in ((64, True), (96, False)):
        sizes = {"hidden_size": 128, "moe_intermediate_size": inner, "num_experts": 3}
        experts = Experts(MoEConfig(**sizes, num_experts_per_tok=2)).bfloat16()
        for part in experts.parameters():
            part.normal_()
        before = [{k: part.clone() for k, part in of.items()} for of in layouts_of(experts)]
        experts.pack()
        assert isinstance(experts.down_proj, BlockedMatrices) == is_blocked
        after = layouts_of(experts)
        assert [list(layout) for layout in after] == [list(layout) for layout in before]
        for one, other in zip(before, after, strict=True):
            assert all(torch.equal(one[key], other[key]) for key in one)


_OF_BFLOAT16_ALONE = """
from llvmlite import binding
from hybridrt.kernels.blocked_matrices import BlockedMatrices
from hybridrt.kernels.cpu import packed_linear, quantised_linear
from hybridrt.kernels.moe import moe_experts
from tests.kernels.expert_parts import make_parts

x, gate_up, down, ids, weights = make_parts(0, 5, 4, 2, 128, 64)
moe_experts(x, BlockedMatrices(gate_up), BlockedMatrices(down), ids, weights)
parts = packed_linear.add_products, quantised_linear.add_quantised
print(*(binding.address_of_symbol(part.symbol) is not None for part in parts))
"""


@blocks
def test_experts_of_bfloat16_do_without_products_of_few_bits() -> None:
    """In a process that has nothing else; to compile those takes seconds."""
    result = subprocess.run(
        [sys.executable, "-c", _OF_BFLOAT16_ALONE],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split() == ["True", "False"], result.stderr[-2000:]
