"""Experts some of which every token is sent to, and which share the weights with the rest.

So they are a sink for the weight that the others don't get (Inkling). Rows of the gate and of
`up` take turns in a matrix.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.kernels.moe import moe_experts
from hybridrt.kernels.reference.gates import gated
from hybridrt.layers.linear import Linear
from hybridrt.layers.moe import Experts, MoEConfig


class ScaledMLP(nn.Module):
    """SwiGLU, times a learned number."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden_size, 2 * intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)
        self.global_scale = nn.Parameter(torch.empty(1), requires_grad=False)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        inner = gated(self.gate_up_proj(x), "silu by turns", 1.0, 0.0)
        return self.down_proj(inner) * self.global_scale


class SinkRouter(nn.Module):
    """Picks the experts with the best sigmoids, a learned bias added; and all shared ones.

    Weights are the sigmoids of all that were picked, divided by their sum, times
    `routed_scaling_factor` and a learned number.
    """

    def __init__(self, config: MoEConfig, num_shared: int) -> None:
        super().__init__()
        self.config = config
        self.num_shared = num_shared
        shape = (config.num_experts + num_shared, config.hidden_size)
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.e_score_correction_bias, self.global_scale = (
            nn.Parameter(torch.empty(size, dtype=torch.float32), requires_grad=False)
            for size in (config.num_experts, 1)
        )

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> tuple[Tensor, Tensor]:
        """Ids of the picked experts, the shared ones last, and their weights."""
        routed = self.config.num_experts
        logits = F.linear(x.float(), self.weight.float())
        merit = logits[:, :routed].sigmoid() + self.e_score_correction_bias
        best = merit.topk(self.config.num_experts_per_tok, dim=-1).indices
        shared = torch.arange(routed, routed + self.num_shared, device=x.device)
        ids = torch.cat([best, shared.expand(len(x), -1)], dim=-1)
        weights = F.logsigmoid(logits.gather(-1, ids)).softmax(-1)
        return ids, weights * (self.config.routed_scaling_factor * self.global_scale)


class SinkExperts(Experts):
    """The routed experts and behind them the shared ones, as one stack."""

    def __init__(self, config: MoEConfig, num_shared: int) -> None:
        super().__init__(config.model_copy(update={"num_experts": config.num_experts + num_shared}))
        self.num_routed = config.num_experts

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """Routed and shared experts are a stack each."""
        layout: dict[str, Tensor] = {}
        for name, stack in self.named_parameters():
            layout[f"experts.{name}"] = stack[: self.num_routed]
            layout[f"shared_experts.{name}"] = stack[self.num_routed :]
        return [layout]


class SinkMoE(nn.Module):
    """Routed experts, and `num_shared` that every token is sent to."""

    def __init__(self, config: MoEConfig, num_shared: int) -> None:
        super().__init__()
        self.gate = SinkRouter(config, num_shared)
        self.experts = SinkExperts(config, num_shared)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        ids, weights = self.gate(x)
        experts = self.experts
        return moe_experts(
            x, experts.gate_up_proj, experts.down_proj, ids, weights, gating="silu by turns"
        )
