"""Ministral (Mistral AI, 2024): Mistral with a window in some layers."""

from hybridrt.cache.spec import Window
from hybridrt.models import mistral
from hybridrt.models.transformer import LayerType, window_of


class Config(mistral.Config):
    """Keys of a Ministral `config.json`. Without `layer_types` every layer has the window."""

    layer_types: list[LayerType] | None = None

    def window(self, index: int) -> Window | None:
        """By `layer_types`, or the same in every layer."""
        sliding = self.sliding_window is not None
        return window_of(self.layer_types, self.sliding_window, index, sliding)


class Model(mistral.Model):
    """Attention and SwiGLU in every layer."""

    Config = Config
    text_config_of = ()
