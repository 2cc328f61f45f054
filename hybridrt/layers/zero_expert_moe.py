"""A mixture some of whose experts cost nothing (LongCat-Flash, arXiv 2509.01322, section 2.1)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.kernels.moe import moe_experts
from hybridrt.layers.moe import Experts, MoEConfig, Router


class ZeroExpertMoE(nn.Module):
    """Experts of which the last `num_zero_experts` give back what they get. Routed in float32."""

    def __init__(self, config: MoEConfig, num_zero_experts: int) -> None:
        super().__init__()
        self.num_real = config.num_experts - num_zero_experts
        self.gate = Router(config)
        weight = torch.empty_like(self.gate.weight, dtype=torch.float32)
        self.gate.weight = nn.Parameter(weight, requires_grad=False)
        self.experts = Experts(config.model_copy(update={"num_experts": self.num_real}))

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        ids, weights = self.gate(x)
        is_real = ids < self.num_real
        # Choices that aren't real are spread over all experts, with a weight of zero.
        routed = moe_experts(
            x,
            self.experts.gate_up_proj,
            self.experts.down_proj,
            ids % self.num_real,
            weights * is_real,
        )
        return routed + (x * (weights * ~is_real).sum(-1, keepdim=True)).to(x.dtype)
