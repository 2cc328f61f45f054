"""K-EXAONE (LG AI Research, 2026): EXAONE 4's attention, and experts as DeepSeek-V3's."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models import exaone4
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.transformer import TransformerLM


class Config(exaone4.Config):
    """Keys of a K-EXAONE `config.json`. The layers that predict further tokens are not used."""

    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None
    first_k_dense_replace: int = 1
    moe_intermediate_size: PositiveInt = 1024
    num_experts: PositiveInt = 64
    num_experts_per_tok: PositiveInt = 8
    num_shared_experts: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    n_group: PositiveInt = 1
    topk_group: PositiveInt = 1
    scoring_func: Literal["sigmoid"] = "sigmoid"
    topk_method: Literal["noaux_tc"] = "noaux_tc"

    layer_class = DecoderLayer
    without_effect = ("is_moe_layer", "num_nextn_predict_layers")

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.num_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            scoring_func="sigmoid",
            norm_topk_prob=self.norm_topk_prob,
            routed_scaling_factor=self.routed_scaling_factor,
            n_group=self.n_group,
            topk_group=self.topk_group,
            group_score="top2",
            correction_bias=True,
            shared_intermediate_size=self.moe_intermediate_size * self.num_shared_experts,
        )

    def feed_forward(self, index: int) -> nn.Module:
        """By `mlp_layer_types`, or an MLP in the first layers and experts in the others."""
        types = self.mlp_layer_types
        if types is not None and len(types) != self.num_hidden_layers:
            raise ValueError(f"mlp_layer_types={types} should have a type for every layer")
        dense = index < self.first_k_dense_replace if types is None else types[index] == "dense"
        return super().feed_forward(index) if dense else MoE(self.moe)


class Model(TransformerLM):
    """Attention, and experts or SwiGLU, in every layer."""

    Config = Config
    checkpoint_renames = (
        (r"\.mlp\.e_score_correction_bias$", ".mlp.gate.e_score_correction_bias"),
    )
    ignored_tensors = (*TransformerLM.ignored_tensors, r"mtp\..*")
