"""Mixture of experts: a router picks a few experts for each token."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn
from torch.compiler import is_compiling

from hybridrt.kernels.add import add
from hybridrt.kernels.blocked_matrices import BlockedMatrices, can_block
from hybridrt.kernels.gated import add_gated
from hybridrt.kernels.linear import pack_weight
from hybridrt.kernels.moe import moe_experts, reads_stacked
from hybridrt.kernels.quantised_linear import (
    Bits,
    QuantisedMatrices,
    can_quantise,
)
from hybridrt.kernels.reference.route import Routing
from hybridrt.kernels.room import OF_ITS_OWN, Room
from hybridrt.kernels.route import route
from hybridrt.kernels.shared_expert import SharedExpert, moe_with_shared
from hybridrt.layers.linear import Linear, plain_weight
from hybridrt.layers.mlp import MLP
from hybridrt.layers.watched import is_watched
from hybridrt.values import Value, check_divides


class MoEConfig(Value):
    """Sizes and routing, under DeepSeek's names where it has them.

    Attributes:
        scoring_func: how router logits become scores.
        norm_topk_prob: the chosen scores are divided by their sum, and `topk_norm_eps` beside it.
        routed_scaling_factor: multiplies the weights of routed experts.
        n_group, topk_group: experts outside the best `topk_group` of `n_group` equal groups
            are not chosen.
        group_score: a group is as good as its best expert, or as its best two together.
        float32_router: the router's weights are float32 whatever the model's dtype.
        correction_bias: a learned bias is added to scores for the choice, not for the
            weights (arXiv 2408.15664).
        shared_intermediate_size: of the expert that sees every token; None: there is none.
        shared_bias: that expert has biases.
        shared_gate: a sigmoid of the token scales what that expert gives (Qwen1.5-MoE).
    """

    hidden_size: PositiveInt
    moe_intermediate_size: PositiveInt
    num_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    norm_topk_prob: bool = True
    topk_norm_eps: float = 1e-20
    routed_scaling_factor: float = 1.0
    n_group: PositiveInt = 1
    topk_group: PositiveInt = 1
    group_score: Literal["max", "top2"] = "max"
    float32_router: bool = False
    correction_bias: bool = False
    shared_intermediate_size: int | None = None
    shared_bias: bool = False
    shared_gate: bool = False

    @model_validator(mode="after")
    def _enough_experts(self) -> "MoEConfig":
        check_divides(self, "n_group", "num_experts")
        for few, many in (("num_experts_per_tok", "num_experts"), ("topk_group", "n_group")):
            if getattr(self, few) > getattr(self, many):
                raise ValueError(
                    f"{few}={getattr(self, few)} should be at most {many}={getattr(self, many)}"
                )
        if self.shared_gate and not self.shared_intermediate_size:
            raise ValueError("shared_gate=True needs a shared_intermediate_size")
        return self


class Router(nn.Module):
    """Scores every expert for every token, in float32, and picks the best."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.routing = Routing(
            config.num_experts_per_tok,
            config.scoring_func,
            config.norm_topk_prob,
            config.topk_norm_eps,
            config.routed_scaling_factor,
            config.n_group,
            config.topk_group,
            config.group_score,
        )
        shape = (config.num_experts, config.hidden_size)
        dtype = torch.float32 if config.float32_router else None
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        if config.correction_bias:
            self.e_score_correction_bias = nn.Parameter(
                torch.empty(config.num_experts, dtype=torch.float32), requires_grad=False
            )

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> tuple[Tensor, Tensor]:
        """Ids of the chosen experts and their weights, `[tokens, num_experts_per_tok]` each."""
        bias = self.e_score_correction_bias if self.config.correction_bias else None
        return route(x, self.weight, bias, self.routing)


class Experts(nn.Module):
    """The weights of all experts: `gate_up_proj [E, 2I, H]` and `down_proj [E, H, I]`."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        experts, inner, hidden = (
            config.num_experts,
            config.moe_intermediate_size,
            config.hidden_size,
        )
        self.gate_up_proj = nn.Parameter(
            torch.empty(experts, 2 * inner, hidden), requires_grad=False
        )
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner), requires_grad=False)

    def pack(self, bits: Bits | None = None, room: Room = OF_ITS_OWN) -> None:
        """Brings every matrix into the device's own layout, or into numbers of so many bits.

        Matrices that a kernel reads stacked stay as they are, or are blocked for it. What isn't a
        library's own layout stands in `room`.
        """
        stacks = {name: p for name, p in self.named_parameters() if p.dim() == 3}  # not biases
        if bits is None and can_block(*stacks.values()):
            for name, stacked in stacks.items():
                delattr(self, name)
                setattr(self, name, BlockedMatrices(stacked, room))
            return
        if bits is None and reads_stacked(*stacks.values()):
            return
        for name, stacked in stacks.items():
            if bits is not None and can_quantise(stacked[0], bits):
                delattr(self, name)
                setattr(self, name, QuantisedMatrices(stacked, bits, room))
                continue
            matrices = [pack_weight(matrix) for matrix in stacked]
            if matrices[0].is_mkldnn:
                delattr(self, name)
                frozen = [nn.Parameter(matrix, requires_grad=False) for matrix in matrices]
                setattr(self, name, nn.ParameterList(frozen))

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """Split, three matrices an expert; or stacked as they are here."""
        split: dict[str, Tensor] = {}
        for e, (gate_up, down) in enumerate(zip(self.gate_up_proj, self.down_proj, strict=True)):
            gate, up = gate_up.chunk(2)
            matrices = {"gate_proj": gate, "up_proj": up, "down_proj": down}
            split |= {f"experts.{e}.{name}.weight": part for name, part in matrices.items()}
        stacked = {f"experts.{name}": part for name, part in self.named_parameters()}
        return [split, stacked]


class MoE(nn.Module):
    """Routed experts, and one shared by all tokens if there is one (arXiv 2401.06066)."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.shared_experts = (
            MLP(config.hidden_size, config.shared_intermediate_size, config.shared_bias)
            if config.shared_intermediate_size
            else None
        )
        self.shared_expert_gate = Linear(config.hidden_size, 1) if config.shared_gate else None

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        ids, weights = self.gate(x)
        chosen = x, self.experts.gate_up_proj, self.experts.down_proj, ids, weights
        shared = self._shared_weights()
        if shared is None:
            return self._with_shared(x, moe_experts(*chosen))
        return moe_with_shared(*chosen, shared)

    def _shared_weights(self) -> SharedExpert | None:
        """Those of the shared expert, if its call is a SwiGLU of them and nothing else.

        A compiler gets the calls: it joins them with what stands beside them.
        """
        shared, gate = self.shared_experts, self.shared_expert_gate
        if is_compiling() or type(shared) is not MLP:
            return None
        if shared.activation != "silu" or is_watched(shared):
            return None
        gate_up, down = plain_weight(shared.gate_up_proj), plain_weight(shared.down_proj)
        of_gate = None if gate is None else plain_weight(gate)
        if gate_up is None or down is None or (gate is not None and of_gate is None):
            return None
        return SharedExpert(gate_up, down, of_gate)

    def _with_shared(
        self, x: Float[Tensor, "tokens hidden"], routed: Float[Tensor, "tokens hidden"]
    ) -> Float[Tensor, "tokens hidden"]:
        """What the routed experts gave and what the shared one gives, if there is one."""
        if self.shared_experts is None:
            return routed
        shared = self.shared_experts(x)
        if self.shared_expert_gate is None:
            return add(routed, shared)
        return add_gated(routed, shared, self.shared_expert_gate(x))
