"""Qwen1.5-MoE and Qwen2-57B-A14B (arXiv 2407.10671): Qwen2 with routed and shared experts."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models.transformer import LayerType, TransformerConfig, TransformerLM, window_of


class Config(TransformerConfig):
    """Keys of a Qwen2-MoE `config.json`.

    With `use_sliding_window` every second of the first `max_window_layers` layers has a
    window, unless `layer_types` says which.
    """

    num_key_value_heads: PositiveInt | None = 16
    max_position_embeddings: PositiveInt = 32_768
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    qkv_bias: bool = True
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[LayerType] | None = None
    moe_intermediate_size: PositiveInt = 1408
    shared_expert_intermediate_size: PositiveInt = 5632
    num_experts: int = 60
    num_experts_per_tok: PositiveInt = 4
    norm_topk_prob: bool = False
    decoder_sparse_step: PositiveInt = 1
    mlp_only_layers: list[int] | None = None

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.num_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            norm_topk_prob=self.norm_topk_prob,
            shared_intermediate_size=self.shared_expert_intermediate_size,
            shared_gate=True,
        )

    def attention(self, index: int) -> AttentionConfig:
        """The output's projection has no bias."""
        changes = {"attention_bias": self.qkv_bias, "output_bias": False}
        return super().attention(index).model_copy(update=changes)

    def window(self, index: int) -> Window | None:
        """By `layer_types`, or by its number."""
        size = self.sliding_window if self.use_sliding_window else None
        sliding = size is not None and index % 2 == 0 and index < self.max_window_layers
        return window_of(self.layer_types, size, index, sliding)

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in one layer of every `decoder_sparse_step`, an MLP in `mlp_only_layers`."""
        routed = self.num_experts > 0 and (index + 1) % self.decoder_sparse_step == 0
        if routed and index not in (self.mlp_only_layers or ()):
            return MoE(self.moe)
        return super().feed_forward(index)


class Model(TransformerLM):
    """Attention, and experts or SwiGLU, in every layer."""

    Config = Config
    checkpoint_renames = ((r"\.mlp\.shared_expert\.", ".mlp.shared_experts."),)
