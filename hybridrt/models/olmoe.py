"""OLMoE (arXiv 2409.02060): Llama with experts, queries and keys normed over all heads."""

from typing import ClassVar, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models.checks import one_value
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of an OLMoE `config.json`. Clipped queries, keys and values are refused."""

    max_position_embeddings: PositiveInt = 4096
    rms_norm_eps: float = 1e-5
    mlp_bias: Literal[False] = False
    clip_qkv: None = None
    num_experts: PositiveInt | None = None
    num_local_experts: PositiveInt | None = None
    num_experts_per_tok: PositiveInt = 8
    norm_topk_prob: bool = False

    default_num_experts: ClassVar[int] = 64

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        names = {"num_experts": self.num_experts, "num_local_experts": self.num_local_experts}
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.intermediate_size,
            num_experts=one_value(self.default_num_experts, **names),
            num_experts_per_tok=self.num_experts_per_tok,
            norm_topk_prob=self.norm_topk_prob,
        )

    def attention(self, index: int) -> AttentionConfig:
        """Queries and keys are normed, all heads of a token together."""
        changes = {"qk_norm_eps": self.rms_norm_eps, "qk_norm_over": "heads"}
        return super().attention(index).model_copy(update=changes)

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in every layer."""
        return MoE(self.moe)


class Model(TransformerLM):
    """Attention and experts in every layer."""

    Config = Config
