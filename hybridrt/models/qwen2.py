"""Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): Llama with biased queries, keys and values."""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.models.transformer import LayerType, TransformerConfig, TransformerLM, window_of


class Config(TransformerConfig):
    """Keys of a Qwen2 `config.json`.

    With `use_sliding_window` the layers from `max_window_layers` on have windows, unless
    `layer_types` says which.
    """

    num_key_value_heads: PositiveInt | None = 32
    max_position_embeddings: PositiveInt = 32_768
    attention_bias: Literal[True] = True
    mlp_bias: Literal[False] = False
    use_mrope: Literal[False] = False
    use_sliding_window: bool = False
    sliding_window: PositiveInt | None = 4096
    max_window_layers: int = 28
    layer_types: list[LayerType] | None = None

    def attention(self, index: int) -> AttentionConfig:
        """The output's projection has no bias."""
        return super().attention(index).model_copy(update={"output_bias": False})

    def window(self, index: int) -> Window | None:
        """By `layer_types`, or by its number."""
        size = self.sliding_window if self.use_sliding_window else None
        sliding = size is not None and index >= self.max_window_layers
        return window_of(self.layer_types, size, index, sliding)


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
    text_config_of = ("internvl", "llava_onevision", "qwen2_audio")
