"""Mixtures of experts with gates and values that are bent (Inkling 2)."""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from pydantic import PositiveFloat
from torch import Tensor

from hybridrt.kernels.moe import moe_experts
from hybridrt.layers.moe import Experts, MoE, MoEConfig


class ExpertsByTurns(Experts):
    """Experts whose rows of the gate and of `up` take turns, the gate's first."""

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """Stacked, as they are here, under the names that go with that order of rows."""
        names = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight"}
        return [{f"experts.{names[name]}": stack for name, stack in self.named_parameters()}]


class BentMoE(MoE):
    """Routed experts; see `hybridrt.kernels.reference.gates.bent_swiglu` for their gate."""

    def __init__(self, config: MoEConfig, gate_cap: PositiveFloat, up_cap: PositiveFloat) -> None:
        super().__init__(config)
        self.experts = ExpertsByTurns(config)
        self.gate_cap, self.up_cap = gate_cap, up_cap

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        ids, weights = self.gate(x)
        return moe_experts(
            x,
            self.experts.gate_up_proj,
            self.experts.down_proj,
            ids,
            weights,
            gating="bent by turns",
            alpha=self.gate_cap,
            limit=self.up_cap,
        )
