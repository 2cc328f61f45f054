"""Experts of 8 and 4 bits: the same products as of what their weights stand for."""

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.moe import moe_experts, reads_blocks
from hybridrt.kernels.quantised_linear import GROUP, Bits, QuantisedMatrices, quantise_weight
from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.reference.moe import moe_experts as definition
from hybridrt.kernels.reference.quantised_linear import dequantise_weight
from hybridrt.kernels.reference.relu2_moe import relu2_experts as definition_of_relu2
from hybridrt.kernels.relu2_moe import relu2_experts
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_right

from .expert_parts import GATES, assert_is_the_definition, make_biases, make_parts

BITS: tuple[Bits, ...] = (8, 4)


def exact(matrices: QuantisedMatrices) -> Tensor:
    """What they stand for, with no digit rounded away."""
    return torch.stack(
        [
            dequantise_weight(one.values, one.scales.float(), one.bits, one.outputs)
            for one in matrices
        ]
    )


@bounded(40)
@given(
    seed=st.integers(0, 2**16),
    tokens=st.sampled_from([1, 2, 6, 7, 12, 13, 48, 49, 130]),
    experts=st.integers(1, 6),
    bits=st.sampled_from(BITS),
    hidden=st.sampled_from([1, 2, 5]),
    inner=st.sampled_from([1, 2]),
    gating=st.sampled_from(GATES),
    biased=st.booleans(),
    data=st.data(),
)
def test_is_the_definition(
    seed: int,
    tokens: int,
    experts: int,
    bits: Bits,
    hidden: int,
    inner: int,
    gating: Gating,
    biased: bool,
    data: st.DataObject,
) -> None:
    top_k, unit = data.draw(st.integers(1, experts)), max(64, GROUP[bits])
    x, *stacks, ids, weights = make_parts(seed, tokens, experts, top_k, hidden * unit, inner * unit)
    biases = make_biases(*stacks) if biased else []
    matrices = [QuantisedMatrices(part, bits) for part in stacks]
    assert reads_blocks(x, matrices[1])
    plain = [exact(part) for part in matrices]
    assert_is_the_definition(x, matrices, plain, ids, weights, biases, gating)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("tokens", [1, 5, 80])
def test_without_gates_too(tokens: int, bits: Bits) -> None:
    x, gate_up, down, ids, weights = make_parts(0, tokens, 4, 2, 256, 128)
    up, down = QuantisedMatrices(gate_up[:, :128], bits), QuantisedMatrices(down, bits)
    out = relu2_experts(x, up, down, ids, weights)
    matrices = exact(up), exact(down)
    assert_right(out, lambda *parts: definition_of_relu2(*parts, ids, weights), x, *matrices)


@pytest.mark.parametrize("bits", BITS)
def test_a_token_gets_the_same_bits_beside_others_and_on_any_threads(bits: Bits) -> None:
    x, *stacks, ids, weights = make_parts(1, 60, 5, 3, 384, 256)
    matrices = [QuantisedMatrices(part, bits) for part in stacks]
    together = moe_experts(x, *matrices, ids, weights)
    for t in range(len(x)):
        token = slice(t, t + 1)
        assert torch.equal(
            moe_experts(x[token], *matrices, ids[token], weights[token])[0], together[t]
        )
    for threads in (2, 3, 5):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(numba, "get_num_threads", lambda count=threads: count)
            assert torch.equal(moe_experts(x, *matrices, ids, weights), together)


@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_expert_that_is_not_there_is_an_error(wrong: int) -> None:
    x, *stacks, _, _ = make_parts(0, 2, 4, 2, 64, 64)
    matrices = [QuantisedMatrices(part, 4) for part in stacks]
    with pytest.raises(IndexError, match=r"expert ids should be 0 \.\. 3"):
        moe_experts(x, *matrices, torch.tensor([[0, 1], [2, wrong]]), torch.ones(2, 2))


@pytest.mark.parametrize(("hidden", "inner"), [(64, 96), (96, 64)])
def test_parts_of_blocks_are_multiplied_one_by_one(hidden: int, inner: int) -> None:
    x, *stacks, ids, weights = make_parts(2, 9, 4, 2, hidden, inner)
    first, second = (QuantisedMatrices(part, 4) for part in stacks)
    assert not reads_blocks(x, second)
    out = moe_experts(x, first, second, ids, weights)
    matrices = exact(first), exact(second)
    assert_right(out, lambda *parts: definition(*parts, ids, weights), x, *matrices)


@pytest.mark.parametrize("bits", BITS)
def test_each_is_the_weight_that_was_quantised(bits: Bits) -> None:
    _, gate_up, *_ = make_parts(3, 1, 3, 1, 128, 96)
    weights = [quantise_weight(matrix, bits) for matrix in gate_up]
    matrices = QuantisedMatrices(gate_up, bits)
    assert len(matrices) == 3 and (matrices.outputs, matrices.inputs) == (192, 128)
    for one, weight in zip(matrices, weights, strict=True):
        assert torch.equal(one.dequantised(), weight.dequantised())
        assert (one.num_bytes, one.num_weights) == (weight.num_bytes, weight.num_weights)
