"""Helium (Kyutai, 2025): Llama whose heads are rotated in pairs of neighbours."""

from pydantic import PositiveInt

from hybridrt.layers.attention import AttentionConfig
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of a Helium `config.json`."""

    num_key_value_heads: PositiveInt | None = 20
    head_dim: PositiveInt | None = 128
    max_position_embeddings: PositiveInt = 4096
    rms_norm_eps: float = 1e-8

    default_rope_theta = 100_000.0
    interleaved_rope = True

    def attention(self, index: int) -> AttentionConfig:
        """The output's projection has no bias."""
        return super().attention(index).model_copy(update={"output_bias": False})


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
