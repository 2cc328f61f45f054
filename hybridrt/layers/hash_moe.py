"""The mixtures of DeepSeek-V4: other scores, and in the first layers a table for routing."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.layers.limited_moe import LimitedMoE
from hybridrt.layers.moe import MoEConfig


class SoftplusRouter(nn.Module):
    """Scores every expert for every token by `sqrt(softplus(logit))`, and picks the best.

    As `hybridrt.layers.moe.Router`, with a learned bias for the choice.
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        shape = (config.num_experts, config.hidden_size)
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], input_ids: Int64[Tensor, " tokens"]
    ) -> tuple[Tensor, Tensor]:
        """Ids of the chosen experts and their weights, `[tokens, num_experts_per_tok]` each."""
        scores = F.softplus(F.linear(x.float(), self.weight.float())).sqrt()
        ids = self._choose(scores, input_ids)
        weights = scores.gather(-1, ids)
        weights = weights / (weights.sum(-1, keepdim=True) + self.config.topk_norm_eps)
        return ids, weights * self.config.routed_scaling_factor

    def _choose(
        self, scores: Float[Tensor, "tokens experts"], input_ids: Int64[Tensor, " tokens"]
    ) -> Int64[Tensor, "tokens top_k"]:
        raise NotImplementedError


class BestRouter(SoftplusRouter):
    """Picks the experts whose score is highest, with a learned bias added."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__(config)
        bias = torch.empty(config.num_experts, dtype=torch.float32)
        self.e_score_correction_bias = nn.Parameter(bias, requires_grad=False)

    def _choose(
        self, scores: Float[Tensor, "tokens experts"], input_ids: Int64[Tensor, " tokens"]
    ) -> Int64[Tensor, "tokens top_k"]:
        merit = scores + self.e_score_correction_bias
        return merit.topk(self.config.num_experts_per_tok, dim=-1).indices


class HashRouter(SoftplusRouter):
    """Looks the experts up by the token's id, in `tid2eid: [vocab_size, num_experts_per_tok]`."""

    tid2eid: Int64[Tensor, "vocab top_k"]

    def __init__(self, config: MoEConfig, vocab_size: int) -> None:
        super().__init__(config)
        shape = (vocab_size, config.num_experts_per_tok)
        self.register_buffer("tid2eid", torch.empty(shape, dtype=torch.int64))

    def _choose(
        self, scores: Float[Tensor, "tokens experts"], input_ids: Int64[Tensor, " tokens"]
    ) -> Int64[Tensor, "tokens top_k"]:
        return self.tid2eid[input_ids]


class RoutedByToken(LimitedMoE):
    """A `LimitedMoE` whose router is told which tokens these are."""

    def __init__(self, config: MoEConfig, limit: float, gate: SoftplusRouter) -> None:
        super().__init__(config, limit, gate)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Float[Tensor, "tokens hidden"], input_ids: Int64[Tensor, " tokens"]
    ) -> Float[Tensor, "tokens hidden"]:
        return self.mix(x, *self.gate(x, input_ids))
