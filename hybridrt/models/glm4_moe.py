"""GLM-4.5 (arXiv 2508.06471): grouped-query attention and experts as DeepSeek-V3's."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models.routing import deepseek_v3_routing
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of a GLM-4.5 `config.json`. The layer that predicts further tokens is not used."""

    num_key_value_heads: PositiveInt | None = 8
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: float = 1e-5
    mlp_bias: Literal[False] = False
    use_qk_norm: bool = False
    moe_intermediate_size: PositiveInt = 1408
    n_routed_experts: PositiveInt = 128
    n_shared_experts: int = 1
    num_experts_per_tok: PositiveInt = 8
    first_k_dense_replace: int = 1
    n_group: PositiveInt = 1
    topk_group: PositiveInt = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0

    has_partial_rope = True
    default_partial_rotary_factor = 0.5
    without_effect = ("num_nextn_predict_layers", "num_mtp_layers")

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return deepseek_v3_routing(self, self.n_shared_experts)

    def attention(self, index: int) -> AttentionConfig:
        """The output's projection has no bias; queries and keys may be normed."""
        eps = self.rms_norm_eps if self.use_qk_norm else None
        changes = {"output_bias": False, "qk_norm_eps": eps}
        return super().attention(index).model_copy(update=changes)

    def feed_forward(self, index: int) -> nn.Module:
        """An MLP in the first layers, experts in the others."""
        return super().feed_forward(index) if index < self.first_k_dense_replace else MoE(self.moe)


class Model(TransformerLM):
    """Attention, and experts or SwiGLU, in every layer."""

    Config = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # The layers behind the last predict further tokens, for drafts.
        beyond = tuple(rf"model\.layers\.{config.num_hidden_layers + i}\..*" for i in range(8))
        self.ignored_tensors = (*self.ignored_tensors, *beyond)
