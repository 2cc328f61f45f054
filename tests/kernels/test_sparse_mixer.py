"""The choice of experts of Phi-3.5-MoE, against plain loops."""

import math

import pytest
import torch

from hybridrt.kernels.reference.sparse_mixer import sparse_mixer
from hybridrt.layers.moe import MoEConfig
from hybridrt.layers.sparse_mixer import SparseMixerMoE


def _by_loops(scores: list[float], jitter: float) -> tuple[list[int], list[float]]:
    ids: list[int] = []
    weights: list[float] = []
    for _ in range(2):
        left = [e for e in range(len(scores)) if e not in ids]
        chosen = max(left, key=lambda e: scores[e])
        best = scores[chosen]
        near = [e for e in left if (best - scores[e]) / max(abs(scores[e]), best) <= 2 * jitter]
        ids.append(chosen)
        weights.append(1 / sum(math.exp(scores[e] - best) for e in near))
    return ids, weights


@pytest.mark.parametrize("jitter", [0.0, 0.01, 0.3, 5.0])
def test_equals_loops(jitter: float) -> None:
    scores = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    ids, weights = sparse_mixer(scores, jitter)
    for row, row_ids, row_weights in zip(scores, ids, weights, strict=True):
        expected_ids, expected = _by_loops(row.tolist(), jitter)
        assert row_ids.tolist() == expected_ids
        torch.testing.assert_close(row_weights, torch.tensor(expected))


def test_without_others_near_both_weigh_one() -> None:
    _, weights = sparse_mixer(torch.tensor([[4.0, 1.0, -3.0, 2.0]]), 0.01)
    assert weights.tolist() == [[1.0, 1.0]]


def test_other_than_two_experts_are_refused() -> None:
    sizes = MoEConfig(hidden_size=4, moe_intermediate_size=4, num_experts=4, num_experts_per_tok=3)
    with pytest.raises(ValueError, match="num_experts_per_tok=3 should be 2"):
        SparseMixerMoE(sizes, 0.01)
