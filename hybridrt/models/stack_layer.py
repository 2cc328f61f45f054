"""What the layers of a hybrid_stack know of the stack they stand in."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from hybridrt.layers.rope import RopeConfig, read_rope_parameters
from hybridrt.models.config import ModelConfig
from hybridrt.values import Value


class StackConfig(ModelConfig):
    """The keys of a hybrid_stack's `config.json` that hold for all its layers."""

    rms_norm_eps: float = 1e-5

    has_rope: ClassVar[bool] = False

    def rope(self, parameters: Mapping[str, Any]) -> RopeConfig:
        """A layer's `rope_parameters`, with the model's longest position."""
        longest = self.max_position_embeddings
        keys = {"rope_parameters": parameters, "max_position_embeddings": longest}
        return RopeConfig(**read_rope_parameters(keys))


class LayerConfig(Value):
    """One entry of `layers`."""

    type: str

    def make(self, model: StackConfig) -> nn.Module:
        """The mixer."""
        raise NotImplementedError
