"""Granite MoE with one more expert, which every token sees."""

from pydantic import NonNegativeInt

from hybridrt.layers.moe import MoEConfig
from hybridrt.models import granitemoe


class Config(granitemoe.Config):
    """Keys of a `config.json` of this type."""

    shared_intermediate_size: NonNegativeInt = 0

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        changes = {"shared_intermediate_size": self.shared_intermediate_size or None}
        return super().moe.model_copy(update=changes)


class Model(granitemoe.Model):
    """Attention and experts in every layer."""

    Config = Config
    checkpoint_renames = (
        *granitemoe.Model.checkpoint_renames,
        (r"\.shared_mlp\.input_linear\.", ".mlp.shared_experts.gate_up_proj."),
        (r"\.shared_mlp\.output_linear\.", ".mlp.shared_experts.down_proj."),
    )
