"""Nemotron-4 and Minitron (arXiv 2402.16819, 2407.14679): LayerNorm, and an MLP without a gate."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.norm import OffsetLayerNorm
from hybridrt.layers.relu2 import Relu2MLP
from hybridrt.models.transformer import StackConfig, TransformerLM


class Config(StackConfig):
    """Keys of a Nemotron `config.json`."""

    hidden_act: Literal["relu2"] = "relu2"
    max_position_embeddings: PositiveInt = 4096
    norm_eps: float = 1e-5

    has_partial_rope = True
    default_partial_rotary_factor = 0.5
    norm_class = OffsetLayerNorm

    @property
    def eps(self) -> float:
        return self.norm_eps

    def feed_forward(self, index: int) -> nn.Module:
        """`down(relu(up(x))^2)`."""
        return Relu2MLP(self.hidden_size, self.intermediate_size, self.mlp_bias)


class Model(TransformerLM):
    """Attention and an MLP in every layer."""

    Config = Config
    norm_class = OffsetLayerNorm
