"""One expert a token, by routers that hand each other what they see (ZAYA1, arXiv 2511.17127)."""

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.kernels.moe import moe_experts
from hybridrt.layers.linear import Linear
from hybridrt.layers.moe import Experts, MoEConfig
from hybridrt.layers.norm import RMSNorm
from hybridrt.values import Value


class ChainedMoEConfig(Value):
    """Sizes, under their Hugging Face names."""

    hidden_size: PositiveInt
    moe_intermediate_size: PositiveInt
    num_experts: PositiveInt
    router_hidden_size: PositiveInt
    norm_eps: float = 1e-5


class ChainedRouter(nn.Module):
    """Picks one expert or none for each token, and hands what it sees to the next layer's.

    The `first` in a model is handed nothing.
    """

    def __init__(self, config: ChainedMoEConfig, first: bool) -> None:
        super().__init__()
        size, classes = config.router_hidden_size, config.num_experts + 1  # the last is none
        self.down_proj = Linear(config.hidden_size, size, bias=True)
        self.norm = RMSNorm(size, config.norm_eps)
        self.fc1, self.fc2 = (Linear(size, size, bias=True) for _ in range(2))
        self.out_proj = Linear(size, classes)
        scale = None if first else nn.Parameter(torch.empty(size), requires_grad=False)
        self.router_states_scale = scale
        self.balancing_biases = nn.Parameter(
            torch.empty(classes, dtype=torch.float32), requires_grad=False
        )

    def forward(
        self, x: Float[Tensor, "tokens hidden"], seen: Float[Tensor, "tokens size"] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The expert of each token and its weight, `[tokens, 1]`, and what the next one gets."""
        states = self.down_proj(x)
        if seen is not None and self.router_states_scale is not None:
            states = states + seen * self.router_states_scale
        hidden = F.gelu(self.fc1(self.norm(states)))
        scores = self.out_proj(F.gelu(self.fc2(hidden))).float().softmax(-1)
        ids = (scores + self.balancing_biases).argmax(-1, keepdim=True)
        none = ids == scores.shape[-1] - 1
        return ids.masked_fill(none, 0), scores.gather(-1, ids).masked_fill(none, 0), states


class ChainedMoE(nn.Module):
    """One expert a token."""

    def __init__(self, config: ChainedMoEConfig, first: bool) -> None:
        super().__init__()
        self.gate = ChainedRouter(config, first)
        sizes = MoEConfig(
            hidden_size=config.hidden_size,
            moe_intermediate_size=config.moe_intermediate_size,
            num_experts=config.num_experts,
            num_experts_per_tok=1,
        )
        self.experts = Experts(sizes)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], seen: Float[Tensor, "tokens size"] | None
    ) -> tuple[Float[Tensor, "tokens hidden"], Float[Tensor, "tokens size"]]:
        ids, weights, states = self.gate(x, seen)
        experts = self.experts
        return moe_experts(x, experts.gate_up_proj, experts.down_proj, ids, weights), states
