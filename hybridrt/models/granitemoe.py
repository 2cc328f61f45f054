"""Granite 3 MoE (IBM, 2024): Granite with experts in place of MLPs."""

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models import granite


class Config(granite.Config):
    """Keys of a Granite MoE `config.json`."""

    num_local_experts: PositiveInt = 8
    num_experts_per_tok: PositiveInt = 2

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.intermediate_size,
            num_experts=self.num_local_experts,
            num_experts_per_tok=self.num_experts_per_tok,
        )

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in every layer."""
        return MoE(self.moe)


class Model(granite.Model):
    """Attention and experts in every layer."""

    Config = Config
    checkpoint_renames = (
        (r"\.block_sparse_moe\.input_linear\.weight$", ".mlp.experts.gate_up_proj"),
        (r"\.block_sparse_moe\.output_linear\.weight$", ".mlp.experts.down_proj"),
        (r"\.block_sparse_moe\.router\.(layer\.)?", ".mlp.gate."),
        (r"\.block_sparse_moe\.", ".mlp."),
    )
