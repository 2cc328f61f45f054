"""Experts beside an MLP, on the same token, each between norms of its own (Gemma 4)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.kernels.moe import moe_experts
from hybridrt.kernels.reference.gates import Activation
from hybridrt.layers.linear import Linear
from hybridrt.layers.moe import Experts, MoEConfig
from hybridrt.layers.norm import RMSNorm


class NormedRouter(nn.Module):
    """Picks experts by the normed token; each has a scale of its own."""

    def __init__(self, config: MoEConfig, norm_eps: float) -> None:
        super().__init__()
        self.num_experts_per_tok = config.num_experts_per_tok
        self.norm_eps = norm_eps
        self.proj = Linear(config.hidden_size, config.num_experts, packs=False)
        self.scale = nn.Parameter(torch.empty(config.hidden_size), requires_grad=False)
        scales = torch.empty(config.num_experts)
        self.per_expert_scale = nn.Parameter(scales, requires_grad=False)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> tuple[Tensor, Tensor]:
        """Ids of the chosen experts and their weights, `[tokens, num_experts_per_tok]` each."""
        size = x.shape[-1]
        normed = F.rms_norm(x.float(), (size,), eps=self.norm_eps) * self.scale.float()
        logits = F.linear(normed * size**-0.5, self.proj.weight.float())
        weights, ids = logits.softmax(-1).topk(self.num_experts_per_tok, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return ids, weights * self.per_expert_scale.float()[ids]


class ExpertsBesideMLP(nn.Module):
    """`norm_1(mlp's output) + norm_2(experts on norm(x))`, where x hasn't been normed yet.

    The modules stand where the checkpoint has them: in the layer, which gives its own names.
    """

    def __init__(self, config: MoEConfig, norm_eps: float, activation: Activation) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.router = NormedRouter(config, norm_eps)
        self.experts = Experts(config)
        self.post_feedforward_layernorm_1 = RMSNorm(config.hidden_size, norm_eps)
        self.pre_feedforward_layernorm_2 = RMSNorm(config.hidden_size, norm_eps)
        self.post_feedforward_layernorm_2 = RMSNorm(config.hidden_size, norm_eps)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], from_mlp: Float[Tensor, "tokens hidden"]
    ) -> Float[Tensor, "tokens hidden"]:
        ids, weights = self.router(x)
        routed = moe_experts(
            self.pre_feedforward_layernorm_2(x),
            self.experts.gate_up_proj,
            self.experts.down_proj,
            ids,
            weights,
            gating=self.activation,
        )
        dense = self.post_feedforward_layernorm_1(from_mlp)
        return dense + self.post_feedforward_layernorm_2(routed)
