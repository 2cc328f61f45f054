"""Mixtures of experts for tests, and what is right of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridrt.kernels.linear import PackedMatrices
from hybridrt.kernels.moe import moe_experts
from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.reference.moe import moe_experts as definition
from tests.harness.tolerance import assert_right

GATES: list[Gating] = [
    *("silu", "gelu", "gelu_pytorch_tanh", "silu by turns", "bent by turns"),
    *("clamped", "clamped halves", "limited"),
]


def make_parts(
    seed: int, tokens: int, experts: int, top_k: int, hidden: int, inner: int
) -> tuple[Tensor, ...]:
    """x, gate_up, down, the ids of experts and their weights."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [(tokens, hidden), (experts, 2 * inner, hidden), (experts, hidden, inner)]
    x, gate_up, down = (
        torch.randn(shape, generator=draw).mul_(2 * shape[-1] ** -0.5).bfloat16()
        for shape in shapes
    )
    ids = torch.stack([torch.randperm(experts, generator=draw)[:top_k] for _ in range(tokens)])
    return x, gate_up, down, ids, torch.rand(tokens, top_k, generator=draw)


def make_biases(*stacks: Tensor) -> list[Tensor]:
    """Those of stacked matrices."""
    return [torch.randn(stacked.shape[:2]).bfloat16() for stacked in stacks]


def assert_is_the_definition(
    x: Tensor,
    matrices: Sequence[PackedMatrices],
    plain: Sequence[Tensor],
    ids: Tensor,
    weights: Tensor,
    biases: Sequence[Tensor],
    gating: Gating,
) -> None:
    """What a kernel makes of matrices is right of those that they stand for. Biases may be none."""

    def result(x: Tensor, first: Tensor, second: Tensor, *biases: Tensor) -> Tensor:
        rest = (*(biases or (None, None)), gating, 1.3, 0.8)
        return definition(x, first, second, ids, weights, *rest)

    rest = (*(biases or (None, None)), gating, 1.3, 0.8)
    out = moe_experts(x, *matrices, ids, weights, *rest)
    assert_right(out, result, x, *plain, *biases)
