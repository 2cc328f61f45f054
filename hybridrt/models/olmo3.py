"""OLMo 3 (Ai2, 2025): OLMo 2 with three layers that see a window to one that sees everything."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import PositiveInt

from hybridrt.cache.spec import Window
from hybridrt.layers.rope import Rope, RopeConfig, rope_by_layer_type
from hybridrt.models import olmo2
from hybridrt.models.config import ModelConfig
from hybridrt.models.transformer import LayerType, TransformerLM, window_of

_THETA = 500_000.0


class Config(olmo2.Config):
    """Keys of an OLMo 3 `config.json`.

    Each type of layer has rotary settings of its own. Older files have one `rope_theta`, and
    `rope_scaling` of the layers that see everything.
    """

    sliding_window: PositiveInt | None = 4096
    layer_types: list[LayerType] | None = None
    sliding_rope: RopeConfig

    has_rope = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        values = dict(config)
        scaling = values.pop("rope_scaling", None) or {}
        theta = values.pop("rope_theta", None) or _THETA
        ropes = {kind: rope for kind, rope in (values.get("rope_parameters") or {}).items() if rope}
        full = {"rope_theta": theta, **ropes.pop("full_attention", {}), **scaling}
        sliding = {"rope_theta": theta, **ropes.pop("sliding_attention", {})}
        values["rope_parameters"] = {**ropes, "full_attention": full, "sliding_attention": sliding}
        defaults = {"full_attention": full, "sliding_attention": sliding}
        found = rope_by_layer_type(values, defaults)
        if any(rope.partial_rotary_factor not in (None, 1.0) for rope in found.values()):
            raise ValueError("config.json: OLMo 3 rotates whole heads; partial_rotary_factor != 1")
        values["rope_parameters"] = found["full_attention"]
        return super().from_json({**values, "sliding_rope": found["sliding_attention"]}, ignore)

    def window(self, index: int) -> Window | None:
        """By `layer_types`, or in three layers of four."""
        return window_of(self.layer_types, self.sliding_window, index, index % 4 != 3)


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config

    def __init__(self, config: Config) -> None:
        full = config.rope()
        sliding = Rope(config.sliding_rope, full.dim)
        layers = [
            config.layer(i, sliding if config.window(i) else full)
            for i in range(config.num_hidden_layers)
        ]
        super(TransformerLM, self).__init__(config, layers, config.eps, [full, sliding])
