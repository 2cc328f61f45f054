"""LFM2 with experts (Liquid AI, 2025), chosen by sigmoids with a learned bias."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models import lfm2


class Config(lfm2.Config):
    """Keys of an LFM2-MoE `config.json`. Sizes are not adjusted."""

    intermediate_size: PositiveInt = 7168
    moe_intermediate_size: PositiveInt = 1792
    num_dense_layers: int = 2
    num_experts: PositiveInt = 32
    num_experts_per_tok: PositiveInt = 4
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    use_expert_bias: bool = True
    block_auto_adjust_ff_dim: Literal[False] = False

    def feed_forward(self, index: int) -> nn.Module:
        """An MLP in the first `num_dense_layers`, experts in the others."""
        if index < self.num_dense_layers:
            return MLP(self.hidden_size, self.intermediate_size)
        sizes = MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.num_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            scoring_func="sigmoid",
            norm_topk_prob=self.norm_topk_prob,
            topk_norm_eps=1e-6,
            routed_scaling_factor=self.routed_scaling_factor,
            correction_bias=self.use_expert_bias,
        )
        return MoE(sizes)


class Model(lfm2.Model):
    """Short convolutions and attention, each followed by an MLP or experts."""

    Config = Config
