"""FlexOlmo (arXiv 2507.07024): OLMo 2 with experts in place of MLPs."""

from pydantic import PositiveInt

from hybridrt.models import olmoe
from hybridrt.models.olmo2 import Layer


class Config(olmoe.Config):
    """Keys of a FlexOlmo `config.json`."""

    rms_norm_eps: float = 1e-6
    num_experts_per_tok: PositiveInt = 5

    layer_class = Layer
    default_rope_theta = 500_000.0
    default_num_experts = 7


class Model(olmoe.Model):
    """Attention and experts in every layer."""

    Config = Config
