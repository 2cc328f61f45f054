"""GLM-4 (arXiv 2406.12793): Llama with biased queries, half of whose heads are rotated."""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.layers.attention import AttentionConfig
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of a GLM-4 `config.json`."""

    num_key_value_heads: PositiveInt | None = 2
    head_dim: PositiveInt | None = 128
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: float = 1.5625e-7
    attention_bias: bool = True
    mlp_bias: Literal[False] = False

    has_partial_rope = True
    default_partial_rotary_factor = 0.5
    interleaved_rope = True

    def attention(self, index: int) -> AttentionConfig:
        """The output's projection has no bias."""
        return super().attention(index).model_copy(update={"output_bias": False})


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
