"""Mistral (arXiv 2310.06825): Llama that sees a window of tokens, or everything."""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.cache.spec import Window
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of a Mistral `config.json`."""

    num_key_value_heads: PositiveInt | None = 8
    max_position_embeddings: PositiveInt = 131_072
    sliding_window: PositiveInt | None = 4096
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False

    def window(self, index: int) -> Window | None:
        """The same in every layer."""
        return None if self.sliding_window is None else Window(self.sliding_window)


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
    text_config_of = ("llava", "llava_next", "mistral3")
