"""Gemma 3 (arXiv 2503.19786): five layers with windows to one without, and normed queries."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import PositiveInt

from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.rope import Rope, RopeConfig, rope_by_layer_type
from hybridrt.models import gemma2
from hybridrt.models.gemma2 import GemmaModel, Layer, LayerType

_THETAS = {
    "full_attention": {"rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_theta": 10_000.0},
}


class Config(gemma2.GemmaConfig):
    """Keys of a Gemma 3 `config.json`, or of the `text_config` in one.

    Each type of layer has rotary settings of its own. Older files have `rope_theta` and
    `rope_scaling` of the layers that see all tokens, and `rope_local_base_freq` of the others.
    """

    vocab_size: PositiveInt = 262_208
    attn_logit_softcapping: None = None
    sliding_window_pattern: PositiveInt = 6
    rope_parameters: dict[LayerType, RopeConfig]

    has_rope = False
    without_effect = ("_sliding_window_pattern", *gemma2.GemmaConfig.without_effect)

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> "Config":
        values = dict(config)
        ropes = dict(values.get("rope_parameters") or {})
        scaling = values.pop("rope_scaling", None) or {}
        for layer_type, key, changes in (
            ("full_attention", "rope_theta", scaling),
            ("sliding_attention", "rope_local_base_freq", {}),
        ):
            theta = values.pop(key, None)
            older = {} if theta is None else {"rope_theta": theta}
            if entry := {**older, **(ropes.get(layer_type) or {}), **changes}:
                ropes[layer_type] = entry
        values["rope_parameters"] = ropes
        found = rope_by_layer_type(values, _THETAS)
        for layer_type, rope in found.items():
            if rope.partial_rotary_factor not in (None, 1.0):
                raise ValueError(
                    f"config.json: rope_parameters[{layer_type!r}] has partial_rotary_factor="
                    f"{rope.partial_rotary_factor}, which is not defined for Gemma 3"
                )
        read = super().from_json({**values, "rope_parameters": found}, ignore)
        assert isinstance(read, Config)
        return read

    def attention(self, layer_type: LayerType) -> AttentionConfig:
        sizes = super().attention(layer_type)
        normed = {"qk_norm_eps": self.rms_norm_eps, "qk_norm_offset": True}
        return sizes.model_copy(update=normed)


class Model(GemmaModel):
    """Attention and GeGLU in every layer."""

    Config = Config

    def __init__(self, config: Config) -> None:
        ropes = {
            layer_type: Rope(rope, config.head_dim)
            for layer_type, rope in config.rope_parameters.items()
        }
        layers = [
            Layer(
                config,
                Attention(config.attention(layer_type), ropes[layer_type]),
                MLP(
                    config.hidden_size,
                    config.intermediate_size,
                    activation=config.hidden_activation,
                ),
            )
            for layer_type in config.types(config.sliding_window_pattern)
        ]
        super().__init__(config, layers, ropes.values())
