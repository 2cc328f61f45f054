"""Mixtral (arXiv 2401.04088): Mistral with experts in place of MLPs."""

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models import mistral
from hybridrt.models.checks import one_value
from hybridrt.models.decoder import MLP_RENAMES


class Config(mistral.Config):
    """Keys of a Mixtral `config.json`. `num_local_experts` may be called `num_experts`."""

    rms_norm_eps: float = 1e-5
    sliding_window: PositiveInt | None = None
    num_local_experts: PositiveInt | None = None
    num_experts: PositiveInt | None = None
    num_experts_per_tok: PositiveInt = 2

    default_rope_theta = 1_000_000.0

    @property
    def routed_experts(self) -> int:
        """Their number, under whichever name it has."""
        return one_value(8, num_local_experts=self.num_local_experts, num_experts=self.num_experts)

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.intermediate_size,
            num_experts=self.routed_experts,
            num_experts_per_tok=self.num_experts_per_tok,
        )

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in every layer."""
        return MoE(self.moe)


class Model(mistral.Model):
    """Attention and experts in every layer."""

    Config = Config
    text_config_of = ()
    checkpoint_renames = (
        (r"\.block_sparse_moe\.", ".mlp."),
        *MLP_RENAMES,
    )
