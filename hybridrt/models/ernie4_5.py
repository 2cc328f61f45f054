"""ERNIE 4.5 (Baidu, 2025): Llama whose heads are rotated in pairs of neighbours."""

from typing import Any

from pydantic import Field, PositiveInt, model_validator

from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of an ERNIE 4.5 `config.json`. `use_bias` is that of every linear layer."""

    num_key_value_heads: PositiveInt | None = 2
    head_dim: PositiveInt | None = 128
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    use_bias: bool | None = False
    compression_ratio: float = Field(1.0, ge=1.0, le=1.0)

    default_rope_theta = 500_000.0
    interleaved_rope = True
    without_effect = ("freq_allocation", "hidden_dropout_prob", "weight_share_add_bias")

    @model_validator(mode="before")
    @classmethod
    def _biases(cls, values: dict[str, Any]) -> dict[str, Any]:
        bias = bool(values.get("use_bias"))
        return {**values, "attention_bias": bias, "mlp_bias": bias}


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
