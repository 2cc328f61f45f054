"""Phi-3 and Phi-4-mini (arXiv 2404.14219, 2503.01743): Llama with fused projections, LongRoPE."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt

from hybridrt.models import mistral
from hybridrt.models.config import ModelConfig


class Config(mistral.Config):
    """Keys of a Phi-3 `config.json`. Its `su` and `yarn` rotary embeddings are `longrope`."""

    num_key_value_heads: PositiveInt | None = None
    max_position_embeddings: PositiveInt = 4096
    rms_norm_eps: float = 1e-5
    sliding_window: PositiveInt | None = None
    full_attn_mod: Literal[1] = 1
    interpolate_factor: Literal[1] = 1
    lm_head_bias: Literal[False] = False

    has_partial_rope = True
    without_effect = ("embd_pdrop",)

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model; `original_max_position_embeddings` is 4096 where it is missing."""
        key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        rope = {"original_max_position_embeddings": 4096, **(config.get(key) or {})}
        kind = rope.pop("type", None)
        rope["rope_type"] = rope.get("rope_type") or kind or "default"
        if rope["rope_type"] in ("su", "yarn"):
            rope["rope_type"] = "longrope"
        return super().from_json({**config, key: rope}, ignore)


class Model(mistral.Model):
    """Attention and SwiGLU in every layer."""

    Config = Config
    text_config_of = ()
