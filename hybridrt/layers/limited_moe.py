"""SwiGLU whose two halves are limited before they are multiplied, in MLPs and in experts.

As `swiglu_limit` in the config.json files of GLM-5.3, DeepSeek-V4 and Hy4 has it.
"""

from jaxtyping import Float, Int64
from torch import Tensor, nn

from hybridrt.kernels.moe import moe_experts
from hybridrt.kernels.reference.gates import limited_swiglu
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE, MoEConfig


class LimitedMLP(MLP):
    """An MLP with the gate of `hybridrt.kernels.reference.gates.limited_swiglu`."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, limit: float, bias: bool = False
    ) -> None:
        super().__init__(hidden_size, intermediate_size, bias)
        self.limit = limit

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        return self.down_proj(limited_swiglu(self.gate_up_proj(x), self.limit))


class LimitedMoE(MoE):
    """Routed experts, and the one shared by all tokens, with that gate.

    `gate` is what picks the experts, where it isn't `MoE`'s own router. Without `limits_shared`
    the shared one is not limited.
    """

    def __init__(
        self,
        config: MoEConfig,
        limit: float,
        gate: nn.Module | None = None,
        limits_shared: bool = True,
    ) -> None:
        super().__init__(config)
        self.limit = limit
        if gate is not None:
            self.gate = gate
        if config.shared_intermediate_size and limits_shared:
            self.shared_experts = LimitedMLP(
                config.hidden_size, config.shared_intermediate_size, limit, config.shared_bias
            )

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        return self.mix(x, *self.gate(x))

    def mix(
        self,
        x: Float[Tensor, "tokens hidden"],
        ids: Int64[Tensor, "tokens top_k"],
        weights: Float[Tensor, "tokens top_k"],
    ) -> Float[Tensor, "tokens hidden"]:
        """What these experts give, and the shared one."""
        experts = self.experts
        routed = moe_experts(
            x,
            experts.gate_up_proj,
            experts.down_proj,
            ids,
            weights,
            gating="limited",
            limit=self.limit,
        )
        return self._with_shared(x, routed)
