"""Gemma 4 unified (Google, 2026): Gemma 4 without experts or embeddings for each layer.

Images and sounds go into it as they are, so its text model is all that has layers.
"""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.models import gemma4_config, gemma4_text


class Config(gemma4_config.Config):
    """Keys of the `text_config` of a `gemma4_unified` checkpoint."""

    max_position_embeddings: PositiveInt = 262_144
    sliding_window: PositiveInt = 1024
    use_bidirectional_attention: Literal["vision"] | None = "vision"
    hidden_size_per_layer_input: Literal[0] | None = None
    enable_moe_block: Literal[False] = False


class Model(gemma4_text.Model):
    """Attention and GeGLU in every layer."""

    Config = Config
