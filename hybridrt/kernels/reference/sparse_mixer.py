"""The choice of experts of SparseMixer-v2 (arXiv 2409.12136)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sparse_mixer(
    scores: Float[Tensor, "tokens experts"], jitter: float
) -> tuple[Int[Tensor, "tokens two"], Float[Tensor, "tokens two"]]:
    """The best expert and the next, and their weights: `1` where none comes near.

    Each is chosen among those that are left, and weighted by a softmax over those of them whose
    score is within `2 * jitter` of the best, relative to the larger of that and the own one.
    """
    left, ids, weights = scores, [], []
    for _ in range(2):
        best, chosen = left.max(dim=-1, keepdim=True)
        far = (best - scores) / torch.maximum(scores.abs(), best) > 2 * jitter
        shares = left.masked_fill(far, float("-inf")).softmax(-1)
        ids.append(chosen)
        weights.append(shares.gather(-1, chosen))
        left = left.scatter(-1, chosen, float("-inf"))
    return torch.cat(ids, dim=-1), torch.cat(weights, dim=-1)
