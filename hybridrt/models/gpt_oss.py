"""gpt-oss (arXiv 2508.10925): attention with sinks, in windows in turn, and clamped experts."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import PositiveFloat, PositiveInt
from torch import nn

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.clamped_moe import ClampedMoE, ClampedMoEConfig
from hybridrt.models.config import ModelConfig
from hybridrt.models.transformer import LayerType, TransformerConfig, TransformerLM, window_of

_YARN: Mapping[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class Config(TransformerConfig):
    """Keys of a gpt-oss `config.json`."""

    intermediate_size: PositiveInt = 2880
    num_attention_heads: PositiveInt = 64
    num_key_value_heads: PositiveInt | None = 8
    head_dim: PositiveInt | None = 64
    num_local_experts: PositiveInt = 128
    num_experts_per_tok: PositiveInt = 4
    swiglu_alpha: PositiveFloat = 1.702
    swiglu_limit: PositiveFloat = 7.0
    sliding_window: PositiveInt | None = 128
    layer_types: list[LayerType] | None = None
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True

    default_rope_theta = 150_000.0
    without_effect = ("experts_per_token", "initial_context_length")

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model. Without rotary settings it has those of the published models."""
        if not (config.get("rope_parameters") or config.get("rope_scaling")):
            config = {**config, "rope_parameters": dict(_YARN)}
        return super().from_json(config, ignore)

    def window(self, index: int) -> Window | None:
        """Every second layer sees all tokens, or those that are listed."""
        return window_of(self.layer_types, self.sliding_window, index, sliding=index % 2 == 0)

    def attention(self, index: int) -> AttentionConfig:
        """Every head has a sink."""
        return super().attention(index).model_copy(update={"sinks": True})

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in every layer."""
        sizes = ClampedMoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.intermediate_size,
            num_experts=self.num_local_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            swiglu_alpha=self.swiglu_alpha,
            swiglu_limit=self.swiglu_limit,
        )
        return ClampedMoE(sizes)


class Model(TransformerLM):
    """Attention and experts in every layer."""

    Config = Config
