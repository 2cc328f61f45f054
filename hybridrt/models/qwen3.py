"""Qwen3 (arXiv 2505.09388): Llama with normed queries and keys."""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer


class Config(ModelConfig):
    """Keys of a Qwen3 `config.json`. Sliding windows are refused."""

    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = 32
    head_dim: PositiveInt = 128
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 32_768
    rms_norm_eps: float = 1e-6
    rope_parameters: RopeConfig
    attention_bias: bool = False
    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None

    without_effect = ("sliding_window", "max_window_layers")


class Model(CausalLM):
    """Attention and SwiGLU in every layer."""

    Config = Config

    def __init__(self, config: Config) -> None:
        attention = AttentionConfig(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads or config.num_attention_heads,
            head_dim=config.head_dim,
            attention_bias=config.attention_bias,
            qk_norm_eps=config.rms_norm_eps,
        )
        rope = Rope(config.rope_parameters, config.head_dim)
        layers = [
            DecoderLayer(
                config.hidden_size,
                config.rms_norm_eps,
                Attention(attention, rope),
                MLP(config.hidden_size, config.intermediate_size),
            )
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, config.rms_norm_eps, [rope])
