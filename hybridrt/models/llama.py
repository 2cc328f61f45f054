"""Llama (arXiv 2302.13971, 2407.21783)."""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer


class Config(ModelConfig):
    """Keys of a Llama `config.json`."""

    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: float = 1e-6
    rope_parameters: RopeConfig
    attention_bias: bool = False
    mlp_bias: bool = False


class Model(CausalLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
    ignored_tensors = (r".*\.rotary_emb\.inv_freq",)

    def __init__(self, config: Config) -> None:
        heads = config.num_attention_heads
        attention = AttentionConfig(
            hidden_size=config.hidden_size,
            num_attention_heads=heads,
            num_key_value_heads=config.num_key_value_heads or heads,
            head_dim=config.head_dim or config.hidden_size // heads,
            attention_bias=config.attention_bias,
        )
        rope = Rope(config.rope_parameters, attention.head_dim)
        layers = [
            DecoderLayer(
                config.hidden_size,
                config.rms_norm_eps,
                Attention(attention, rope),
                MLP(config.hidden_size, config.intermediate_size, config.mlp_bias),
            )
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, config.rms_norm_eps, [rope])
