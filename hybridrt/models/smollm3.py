"""SmolLM3: Llama without positions in one layer of four (arXiv 2501.18795)."""

from pydantic import PositiveInt

from hybridrt.cache.spec import Window
from hybridrt.models.transformer import LayerType, TransformerConfig, TransformerLM, window_of


class Config(TransformerConfig):
    """Keys of a SmolLM3 `config.json`.

    `no_rope_layers` has a 1 for each layer that does rotate. With `use_sliding_window` the
    others have windows, unless `layer_types` says which.
    """

    num_key_value_heads: PositiveInt | None = 4
    max_position_embeddings: PositiveInt = 32_768
    tie_word_embeddings: bool = True
    use_sliding_window: bool = False
    sliding_window: PositiveInt | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: PositiveInt = 4
    layer_types: list[LayerType] | None = None

    default_rope_theta = 2_000_000.0
    without_effect = ("max_window_layers",)

    def has_positions(self, index: int) -> bool:
        """By `no_rope_layers`, or all but one layer in `no_rope_layer_interval`."""
        if self.no_rope_layers is None:
            return (index + 1) % self.no_rope_layer_interval != 0
        if index >= len(self.no_rope_layers):
            raise ValueError(
                f"no_rope_layers={self.no_rope_layers} should say 0 or 1 for layer {index}"
            )
        return bool(self.no_rope_layers[index])

    def window(self, index: int) -> Window | None:
        """By `layer_types`, or in the layers without positions."""
        size = self.sliding_window if self.use_sliding_window else None
        sliding = size is not None and not self.has_positions(index)
        return window_of(self.layer_types, size, index, sliding)


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
