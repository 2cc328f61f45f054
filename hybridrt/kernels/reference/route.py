"""route in plain torch."""

from math import inf
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.nn import functional as F

Scores = Literal["softmax", "sigmoid"]
GroupScore = Literal["max", "top2"]


class Routing(NamedTuple):
    """How experts are chosen; see `hybridrt.layers.moe.MoEConfig` for all but the last.

    For the choice an expert `outside` its token's best groups counts as much as that.
    """

    top_k: int
    scores: Scores
    normed: bool
    eps: float
    scale: float
    n_group: int = 1
    topk_group: int = 1
    group_score: GroupScore = "max"
    outside: float = -inf


def route(
    x: Float[Tensor, "tokens hidden"],
    weight: Float[Tensor, "experts hidden"],
    correction_bias: Float32[Tensor, " experts"] | None,
    routing: Routing,
) -> tuple[Int64[Tensor, "tokens top_k"], Float32[Tensor, "tokens top_k"]]:
    """See `hybridrt.kernels.route`."""
    logits = F.linear(x.float(), weight.float())
    scores = logits.softmax(-1) if routing.scores == "softmax" else logits.sigmoid()
    merit = scores if correction_bias is None else scores + correction_bias
    if routing.n_group > 1:
        merit = _within_best_groups(merit, routing)
    ids = merit.topk(routing.top_k, dim=-1).indices
    weights = scores.gather(-1, ids)
    if routing.n_group > 1 and correction_bias is None:
        # The best groups may have fewer experts than are asked for.
        weights = weights.masked_fill(merit.gather(-1, ids).isinf(), 0)
    if routing.normed:
        weights = weights / (weights.sum(-1, keepdim=True) + routing.eps)
    return ids, weights * routing.scale


def _within_best_groups(
    merit: Float[Tensor, "tokens experts"], routing: Routing
) -> Float[Tensor, "tokens experts"]:
    """`merit`, with `outside` for experts outside their token's best groups."""
    grouped = merit.unflatten(-1, (routing.n_group, -1))
    best = grouped.topk(1 if routing.group_score == "max" else 2, dim=-1).values.sum(-1)
    chosen = best.topk(routing.topk_group, dim=-1).indices
    mask = torch.ones_like(best, dtype=torch.bool).scatter_(-1, chosen, False)
    return grouped.masked_fill(mask[..., None], routing.outside).flatten(-2)
