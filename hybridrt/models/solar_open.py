"""Solar Open (Upstage, 2025): GLM-4.5 with experts in every layer, whole heads rotated."""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.models import glm4_moe


class Config(glm4_moe.Config):
    """Keys of a Solar Open `config.json`. No layer has the size `intermediate_size`."""

    intermediate_size: PositiveInt = 10_240
    head_dim: PositiveInt | None = 128
    moe_intermediate_size: PositiveInt = 1280
    first_k_dense_replace: Literal[0] = 0
    use_qk_norm: Literal[False] = False

    default_rope_theta = 1_000_000.0
    has_partial_rope = False


class Model(glm4_moe.Model):
    """Attention and experts in every layer."""

    Config = Config
