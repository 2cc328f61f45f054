"""Qwen3-MoE (arXiv 2505.09388): Qwen3 with experts in place of most MLPs."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models.checks import one_value
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of a Qwen3-MoE `config.json`. `num_experts` may be called `num_local_experts`."""

    num_key_value_heads: PositiveInt | None = 4
    max_position_embeddings: PositiveInt = 32_768
    mlp_bias: Literal[False] = False
    use_sliding_window: bool = False
    sliding_window: PositiveInt | None = 4096
    moe_intermediate_size: PositiveInt = 768
    num_experts: int | None = None
    num_local_experts: int | None = None
    num_experts_per_tok: PositiveInt = 8
    norm_topk_prob: bool = False
    decoder_sparse_step: PositiveInt = 1
    mlp_only_layers: list[int] | None = None

    without_effect = ("max_window_layers",)

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.routed_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            norm_topk_prob=self.norm_topk_prob,
        )

    @property
    def routed_experts(self) -> int:
        """Their number, under whichever name it has."""
        names = {"num_experts": self.num_experts, "num_local_experts": self.num_local_experts}
        return one_value(128, **names)

    def attention(self, index: int) -> AttentionConfig:
        """Queries and keys are normed."""
        return super().attention(index).model_copy(update={"qk_norm_eps": self.rms_norm_eps})

    def window(self, index: int) -> Window | None:
        """The same in every layer."""
        size = self.sliding_window if self.use_sliding_window else None
        return None if size is None else Window(size)

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in one layer of every `decoder_sparse_step`, an MLP in `mlp_only_layers`."""
        routed = self.routed_experts > 0 and (index + 1) % self.decoder_sparse_step == 0
        if routed and index not in (self.mlp_only_layers or ()):
            return MoE(self.moe)
        return super().feed_forward(index)


class Model(TransformerLM):
    """Attention, and experts or SwiGLU, in every layer."""

    Config = Config
    text_config_of = ("internvl",)
