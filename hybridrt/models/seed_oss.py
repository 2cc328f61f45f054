"""Seed-OSS (ByteDance, 2025): Llama with biased queries, keys and values."""

from pydantic import PositiveInt

from hybridrt.layers.attention import AttentionConfig
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of a Seed-OSS `config.json`."""

    num_key_value_heads: PositiveInt | None = 8
    head_dim: PositiveInt | None = 128
    max_position_embeddings: PositiveInt = 524_288
    attention_bias: bool = True
    attention_out_bias: bool = False

    def attention(self, index: int) -> AttentionConfig:
        """The output's projection has a bias of its own, or none."""
        changes = {"output_bias": self.attention_out_bias}
        return super().attention(index).model_copy(update=changes)


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
