"""EXAONE 4.0 (arXiv 2507.11407): norms behind each part; global layers don't rotate."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.models.olmo2 import Layer
from hybridrt.models.transformer import LayerType, TransformerConfig, TransformerLM, window_of


class Config(TransformerConfig):
    """Keys of an EXAONE 4 `config.json`.

    Without `layer_types` one layer in `sliding_window_pattern` sees everything, and where
    there is no window, all do.
    """

    num_key_value_heads: PositiveInt | None = 32
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: float = 1e-5
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    sliding_window: PositiveInt | None = 4096
    sliding_window_pattern: NonNegativeInt | str | None = 4
    layer_types: list[LayerType] | None = None

    layer_class = Layer

    def attention(self, index: int) -> AttentionConfig:
        """Queries and keys are normed per head."""
        return super().attention(index).model_copy(update={"qk_norm_eps": self.rms_norm_eps})

    def window(self, index: int) -> Window | None:
        """By `layer_types`, or by its number."""
        pattern = self.sliding_window_pattern
        if self.layer_types is None and self.sliding_window is not None:
            if not isinstance(pattern, int) or pattern == 0:
                raise ValueError(
                    f"sliding_window_pattern={pattern!r} should be a number above 0, or "
                    "layer_types should say which layers are sliding"
                )
            return window_of(None, self.sliding_window, index, (index + 1) % pattern != 0)
        return window_of(self.layer_types, self.sliding_window, index, sliding=False)

    def has_positions(self, index: int) -> bool:
        """In layers with a window, and in all if none has one."""
        return self.sliding_window is None or self.window(index) is not None


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
