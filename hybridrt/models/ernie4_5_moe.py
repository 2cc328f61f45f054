"""ERNIE 4.5 MoE (Baidu, 2025): ERNIE 4.5 with experts, whose choice a bias balances."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from hybridrt.layers.linear import Linear
from hybridrt.layers.moe import MoE, MoEConfig, Router
from hybridrt.models import ernie4_5


class Config(ernie4_5.Config):
    """Keys of an ERNIE 4.5 MoE `config.json`. Layers for further tokens are not used."""

    num_key_value_heads: PositiveInt | None = 4
    head_dim: PositiveInt | None = None
    moe_intermediate_size: PositiveInt = 1536
    moe_k: PositiveInt = 6
    moe_num_experts: PositiveInt = 64
    moe_num_shared_experts: NonNegativeInt = 2
    moe_layer_start_index: int = 1
    moe_layer_end_index: int = -1
    moe_layer_interval: PositiveInt = 1
    moe_norm_min: float = Field(1e-12, le=1e-6)
    moe_gate: Literal["topk"] = "topk"
    moe_use_aux_free: Literal[True] = True

    without_effect = (*ernie4_5.Config.without_effect, "moe_capacity", "num_nextn_predict_layers")

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.moe_num_experts,
            num_experts_per_tok=self.moe_k,
            correction_bias=True,
            shared_intermediate_size=self.moe_intermediate_size * self.moe_num_shared_experts,
            shared_bias=self.mlp_bias,
        )

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in one layer of every `moe_layer_interval` within two bounds, else an MLP."""
        last = self.moe_layer_end_index
        last = self.num_hidden_layers - 1 if last == -1 else last
        inside = self.moe_layer_start_index <= index <= last
        if not inside or (index + 1) % self.moe_layer_interval:
            return super().feed_forward(index)
        moe = MoE(self.moe)
        moe.gate = StaticsRouter(self.moe)
        return moe


class StaticsRouter(Router):
    """A router whose bias a checkpoint has as one row, `moe_statics`."""

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """Both tensors under their names there."""
        bias = self.e_score_correction_bias[None]
        return [{"gate.weight": self.weight, "moe_statics.e_score_correction_bias": bias}]


class Model(ernie4_5.Model):
    """Attention, and experts or SwiGLU, in every layer."""

    Config = Config
    checkpoint_renames = ((r"\.gate\.moe_statics\.", ".moe_statics."),)
    ignored_tensors = (*ernie4_5.Model.ignored_tensors, r"model\.mtp_.*")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.use_bias:
            head = Linear(config.hidden_size, config.vocab_size, bias=True)
            head.weight = self.lm_head.weight  # the embedding's, if they are tied
            self.lm_head = head
