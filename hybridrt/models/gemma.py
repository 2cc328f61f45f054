"""Gemma (arXiv 2403.08295): GeGLU, norms whose weights count from 1, and scaled embeddings."""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.layers.attention import Attention
from hybridrt.layers.mlp import MLP
from hybridrt.layers.norm import OffsetRMSNorm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.gemma2 import GemmaConfig, GemmaModel


class Config(GemmaConfig):
    """Keys of a Gemma `config.json`. Its `gelu` means the one by tanh."""

    hidden_size: PositiveInt = 3072
    intermediate_size: PositiveInt = 24_576
    num_hidden_layers: PositiveInt = 28
    num_attention_heads: PositiveInt = 16
    num_key_value_heads: PositiveInt = 16
    max_position_embeddings: PositiveInt = 8192
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    hidden_activation: Literal["gelu", "gelu_pytorch_tanh"] | None = None
    query_pre_attn_scalar: None = None
    sliding_window: None = None
    layer_types: None = None
    final_logit_softcapping: None = None
    attn_logit_softcapping: None = None
    rope_parameters: RopeConfig


class Model(GemmaModel):
    """Attention and GeGLU in every layer."""

    Config = Config

    def __init__(self, config: Config) -> None:
        size, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        sizes = config.attention("full_attention")
        rope = Rope(config.rope_parameters, config.head_dim)
        layers = [
            DecoderLayer(
                size,
                eps,
                Attention(sizes, rope),
                MLP(size, inner, activation="gelu_pytorch_tanh"),
                OffsetRMSNorm,
            )
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, [rope])
