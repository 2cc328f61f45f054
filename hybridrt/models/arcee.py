"""AFM-4.5B (Arcee AI, 2025): Llama whose MLP has no gate, and squares (arXiv 2109.08668)."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.relu2 import Relu2MLP
from hybridrt.models.transformer import StackConfig, TransformerLM


class Config(StackConfig):
    """Keys of an Arcee `config.json`."""

    hidden_act: Literal["relu2"] = "relu2"
    max_position_embeddings: PositiveInt = 4096
    rms_norm_eps: float = 1e-5

    @property
    def eps(self) -> float:
        return self.rms_norm_eps

    def feed_forward(self, index: int) -> nn.Module:
        """`down(relu(up(x))^2)`."""
        return Relu2MLP(self.hidden_size, self.intermediate_size, self.mlp_bias)


class Model(TransformerLM):
    """Attention and an MLP in every layer."""

    Config = Config
