"""What Llama-like models have in common: model files subclass both and say what differs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer

LayerType = Literal["full_attention", "sliding_attention"]


class StackConfig(ModelConfig):
    """The keys of a stack of attention and feed-forward layers, and the layers they stand for."""

    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    rope_parameters: RopeConfig
    attention_bias: bool = False
    mlp_bias: bool = False

    default_partial_rotary_factor: ClassVar[float | None] = None
    """How much of a head is rotated where the file doesn't say; None: all of it."""
    norm_class: ClassVar[type[nn.Module]] = RMSNorm
    """Of every norm in the stream."""
    layer_class: ClassVar[type[nn.Module]] = DecoderLayer
    """Takes the size and eps of its norms, attention, feed-forward layer and `norm_class`."""
    interleaved_rope: ClassVar[bool] = False
    """Whether neighbours in a head are rotated as pairs; see `Rope`."""

    @property
    def eps(self) -> float:
        """Of every norm in the stream."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model. `partial_rotary_factor` may stand outside `rope_parameters`."""
        if not cls.has_partial_rope:
            return super().from_json(config, ignore)
        if (factor := cls.rotated_part(config)) is not None:
            key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
            rope = {"partial_rotary_factor": factor, **(config.get(key) or {})}
            config = {**config, key: rope}
        return super().from_json(config, {*ignore, "partial_rotary_factor"})

    @classmethod
    def rotated_part(cls, config: Mapping[str, Any]) -> float | None:
        """How much of a head is rotated where `rope_parameters` doesn't say."""
        factor = config.get("partial_rotary_factor")
        return cls.default_partial_rotary_factor if factor is None else factor

    def rope(self) -> Rope:
        """The rotary table of all layers."""
        factor = self.rope_parameters.partial_rotary_factor
        size = self.attention(0).head_dim
        dim = size if factor is None else int(size * factor)
        return Rope(self.rope_parameters, dim, self.interleaved_rope)

    def attention(self, index: int) -> AttentionConfig:
        """The sizes of a layer's attention."""
        heads = self.num_attention_heads
        return AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=heads,
            num_key_value_heads=self.num_key_value_heads or heads,
            head_dim=self.head_dim or self.hidden_size // heads,
            attention_bias=self.attention_bias,
            window=self.window(index),
        )

    def window(self, index: int) -> Window | None:
        """What a layer sees; None: everything before."""
        return None

    def has_positions(self, index: int) -> bool:
        """Whether a layer's queries and keys are rotated."""
        return True

    def feed_forward(self, index: int) -> nn.Module:
        """What stands behind a layer's attention."""
        return MLP(self.hidden_size, self.intermediate_size, self.mlp_bias)

    def layer(self, index: int, rope: Rope) -> nn.Module:
        """One layer."""
        attention = Attention(self.attention(index), rope if self.has_positions(index) else None)
        return self.layer_class(
            self.hidden_size, self.eps, attention, self.feed_forward(index), self.norm_class
        )


class TransformerConfig(StackConfig):
    """The keys of a Llama-like `config.json`: RMSNorm and SwiGLU."""

    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: float = 1e-6

    @property
    def eps(self) -> float:
        return self.rms_norm_eps


class TransformerLM(CausalLM):
    """Attention and a feed-forward layer, over and over."""

    ignored_tensors = (r".*\.rotary_emb\.inv_freq",)

    def __init__(self, config: StackConfig) -> None:
        rope = config.rope()
        layers = [config.layer(i, rope) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, config.eps, [rope])


def window_of(
    layer_types: Sequence[LayerType] | None, size: int | None, index: int, sliding: bool
) -> Window | None:
    """The window of layer `index`, by `layer_types`; where there are none, by `sliding`.

    Raises:
        ValueError: the list is too short, or there is a window and no size for it.
    """
    if layer_types is not None:
        if index >= len(layer_types):
            raise ValueError(f"layer_types={layer_types} should have a type for layer {index}")
        sliding = layer_types[index] == "sliding_attention"
    if not sliding:
        return None
    if size is None:
        raise ValueError(f"sliding_window=None should be a number, as layer {index} is sliding")
    return Window(size)
