"""Mixtures of experts with a gate that is clamped, as gpt-oss has it (arXiv 2508.10925)."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.kernels.moe import moe_experts
from hybridrt.kernels.reference.gates import clamped_halves_swiglu
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import Experts, MoE, MoEConfig


class ClampedMoEConfig(MoEConfig):
    """`MoEConfig`, of which the sizes count, and the constants of the gate."""

    swiglu_alpha: PositiveFloat = 1.702
    swiglu_limit: PositiveFloat = 7.0


class BiasedRouter(nn.Module):
    """Picks the experts with the greatest logits; their weights are the softmax of these."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        shape = (config.num_experts, config.hidden_size)
        self.num_experts_per_tok = config.num_experts_per_tok
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(config.num_experts), requires_grad=False)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> tuple[Tensor, Tensor]:
        """Ids of the chosen experts and their weights, `[tokens, num_experts_per_tok]` each."""
        logits = F.linear(x.float(), self.weight.float(), self.bias.float())
        values, ids = logits.topk(self.num_experts_per_tok, dim=-1)
        return ids, values.softmax(-1)


class BiasedExperts(Experts):
    """Experts with biases, whose rows of the gate and of `up` take turns, the gate's first."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__(config)
        gate_up, down = self.gate_up_proj.shape[:2], self.down_proj.shape[:2]
        self.gate_up_proj_bias = nn.Parameter(torch.empty(gate_up), requires_grad=False)
        self.down_proj_bias = nn.Parameter(torch.empty(down), requires_grad=False)

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """All experts in one tensor, whose matrices are transposed."""
        matrices = {f"experts.{name}": p.mT for name, p in self.named_parameters() if p.dim() == 3}
        biases = {f"experts.{name}": p for name, p in self.named_parameters() if p.dim() == 2}
        return [matrices | biases]


class ClampedMoE(nn.Module):
    """Routed experts; see `hybridrt.kernels.reference.gates.clamped_swiglu` for their gate."""

    def __init__(self, config: ClampedMoEConfig) -> None:
        super().__init__()
        self.config = config
        self.router = BiasedRouter(config)
        self.experts = BiasedExperts(config)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        ids, weights = self.router(x)
        experts = self.experts
        return moe_experts(
            x,
            experts.gate_up_proj,
            experts.down_proj,
            ids,
            weights,
            experts.gate_up_proj_bias,
            experts.down_proj_bias,
            "clamped",
            self.config.swiglu_alpha,
            self.config.swiglu_limit,
        )


class ClampedHalvesMLP(MLP):
    """An MLP with such a gate, its rows before those of `up` (MiniMax-M3)."""

    def __init__(self, config: ClampedMoEConfig, intermediate_size: int) -> None:
        super().__init__(config.hidden_size, intermediate_size)
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        return self.down_proj(clamped_halves_swiglu(self.gate_up_proj(x), self.alpha, self.limit))


class ClampedHalvesMoE(MoE):
    """`MoE` with that gate in every expert, the one shared by all tokens too."""

    def __init__(self, config: ClampedMoEConfig) -> None:
        super().__init__(config)
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        if config.shared_intermediate_size:
            self.shared_experts = ClampedHalvesMLP(config, config.shared_intermediate_size)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        ids, weights = self.gate(x)
        routed = moe_experts(
            x,
            self.experts.gate_up_proj,
            self.experts.down_proj,
            ids,
            weights,
            gating="clamped halves",
            alpha=self.alpha,
            limit=self.limit,
        )
        return self._with_shared(x, routed)
