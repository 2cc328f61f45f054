"""VaultGemma (Google, 2025): Gemma 2 without the norms behind attention and the MLP."""

from hybridrt.layers.attention import Attention
from hybridrt.layers.mlp import MLP
from hybridrt.layers.norm import OffsetRMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.models import gemma2
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.gemma2 import GemmaModel


class Config(gemma2.Config):
    """Keys of a VaultGemma `config.json`."""


class Model(GemmaModel):
    """Attention and GeGLU in every layer."""

    Config = Config
    checkpoint_renames = ((r"\.pre_feedforward_layernorm\.", ".post_attention_layernorm."),)

    def __init__(self, config: Config) -> None:
        size, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        rope = Rope(config.rope_parameters, config.head_dim)
        layers = [
            DecoderLayer(
                size,
                eps,
                Attention(config.attention(layer_type), rope),
                MLP(size, inner, activation=config.hidden_activation),
                OffsetRMSNorm,
            )
            for layer_type in config.types(period=2)
        ]
        super().__init__(config, layers, [rope])
