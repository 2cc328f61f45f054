"""The mixture of experts of Llama 4: an expert's weight scales what goes into it."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.kernels.moe import moe_experts
from hybridrt.layers.linear import Linear
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import Experts, MoEConfig


class TransposedExperts(Experts):
    """All experts in one tensor, whose matrices checkpoints have transposed."""

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """One layout."""
        return [{f"experts.{name}": stacked.mT for name, stacked in self.named_parameters()}]


class InputScaledMoE(nn.Module):
    """`shared(x) + sum_j expert_j(sigmoid(logit_j) x)` over the experts with the best logits."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.num_experts_per_tok = config.num_experts_per_tok
        self.router = Linear(config.hidden_size, config.num_experts)
        self.experts = TransposedExperts(config)
        self.shared_expert = MLP(config.hidden_size, config.moe_intermediate_size)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        logits, ids = self.router(x).topk(self.num_experts_per_tok, dim=-1)
        scales = torch.sigmoid(logits.float()).to(x.dtype)
        scaled = (x[:, None] * scales[..., None]).flatten(0, 1)  # a row for each choice
        ones = torch.ones(len(scaled), 1, dtype=torch.float32, device=x.device)
        gate_up, down = self.experts.gate_up_proj, self.experts.down_proj
        routed = moe_experts(scaled, gate_up, down, ids.view(-1, 1), ones)
        return self.shared_expert(x) + routed.unflatten(0, ids.shape).sum(1)
