"""Apertus (Swiss AI, arXiv 2509.14233): Llama with normed queries, and an MLP bent by xIELU."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.xielu import XIELUMLP
from hybridrt.models.config import ModelConfig
from hybridrt.models.transformer import StackConfig, TransformerLM

_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


class Config(StackConfig):
    """Keys of an Apertus `config.json`."""

    intermediate_size: PositiveInt = 14_336
    num_attention_heads: PositiveInt = 32
    hidden_act: Literal["xielu"] = "xielu"
    max_position_embeddings: PositiveInt = 65_536
    rms_norm_eps: float = 1e-5
    mlp_bias: Literal[False] = False
    qk_norm: Literal[True] = True
    post_norm: Literal[False] = False

    default_rope_theta = 12_000_000.0

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model; without rotary settings, those of the published models."""
        if not any(config.get(key) for key in ("rope_parameters", "rope_scaling", "rope_theta")):
            config = {**config, "rope_parameters": _ROPE}
        return super().from_json(config, ignore)

    @property
    def eps(self) -> float:
        return self.rms_norm_eps

    def attention(self, index: int) -> AttentionConfig:
        """Queries and keys are normed, each head by itself."""
        normed = {"qk_norm_eps": self.rms_norm_eps}
        return super().attention(index).model_copy(update=normed)

    def feed_forward(self, index: int) -> nn.Module:
        """`down(xielu(up(x)))`."""
        return XIELUMLP(self.hidden_size, self.intermediate_size)


class Model(TransformerLM):
    """Attention and an MLP in every layer."""

    Config = Config
    checkpoint_renames = (
        (r"\.attention_layernorm\.", ".input_layernorm."),
        (r"\.feedforward_layernorm\.", ".post_attention_layernorm."),
    )
