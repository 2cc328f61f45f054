"""Command R7B and Command A (arXiv 2504.00698): Command R with windows, rotated only there."""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.cache.spec import Window
from hybridrt.models import cohere
from hybridrt.models.transformer import LayerType, window_of


class Config(cohere.Config):
    """Keys of a Command A `config.json`.

    Without `layer_types` one layer in `sliding_window_pattern` sees everything.
    """

    sliding_window: PositiveInt | None = 4096
    sliding_window_pattern: PositiveInt = 4
    layer_types: list[LayerType] | None = None
    position_embedding_type: Literal["rope_gptj"] = "rope_gptj"
    rotary_pct: Literal[1] = 1
    use_gated_activation: Literal[True] = True
    use_parallel_block: Literal[True] = True

    default_rope_theta = 10_000.0
    without_effect = (
        *cohere.Config.without_effect,
        "layer_switch",
        "order_of_interleaved_layers",
        "use_embedding_sharing",
        "use_parallel_embedding",
    )

    def window(self, index: int) -> Window | None:
        """By `layer_types`, or by its number."""
        sliding = (index + 1) % self.sliding_window_pattern != 0
        return window_of(self.layer_types, self.sliding_window, index, sliding)

    def has_positions(self, index: int) -> bool:
        """In layers with a window."""
        return self.window(index) is not None


class Model(cohere.Model):
    """Attention and SwiGLU in every layer."""

    Config = Config
