"""dots.llm1 (arXiv 2506.05767): normed queries and keys, experts as DeepSeek-V3's."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models.routing import deepseek_v3_routing
from hybridrt.models.transformer import LayerType, TransformerConfig, TransformerLM, window_of


class Config(TransformerConfig):
    """Keys of a dots.llm1 `config.json`.

    The layers from `max_window_layers` on have windows, unless `layer_types` says which.
    """

    num_key_value_heads: PositiveInt | None = 32
    max_position_embeddings: PositiveInt = 2048
    mlp_bias: Literal[False] = False
    moe_intermediate_size: PositiveInt = 1408
    n_routed_experts: PositiveInt
    n_shared_experts: int | None = None
    num_experts_per_tok: PositiveInt
    first_k_dense_replace: int = 0
    moe_layer_freq: Literal[1] = 1
    scoring_func: Literal["sigmoid", "noaux_tc"] = "sigmoid"
    topk_method: Literal["noaux_tc"] = "noaux_tc"
    n_group: PositiveInt | None = 1
    topk_group: PositiveInt | None = 1
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0
    sliding_window: PositiveInt | None = 4096
    max_window_layers: int = 62
    layer_types: list[LayerType] | None = None

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return deepseek_v3_routing(self, self.n_shared_experts)

    def attention(self, index: int) -> AttentionConfig:
        """Queries and keys are normed per head."""
        return super().attention(index).model_copy(update={"qk_norm_eps": self.rms_norm_eps})

    def window(self, index: int) -> Window | None:
        """By `layer_types`, or by its number."""
        size = self.sliding_window
        sliding = size is not None and index >= self.max_window_layers
        return window_of(self.layer_types, size, index, sliding)

    def feed_forward(self, index: int) -> nn.Module:
        """An MLP in the first layers, experts in the others."""
        return super().feed_forward(index) if index < self.first_k_dense_replace else MoE(self.moe)


class Model(TransformerLM):
    """Attention, and experts or SwiGLU, in every layer."""

    Config = Config
