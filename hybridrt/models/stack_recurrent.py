"""The layers of a hybrid_stack that keep a state."""

from math import inf

from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from hybridrt.layers.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig
from hybridrt.layers.kda import KimiDeltaAttention, KimiDeltaAttentionConfig
from hybridrt.layers.lightning_attention import LightningAttention, LightningAttentionConfig
from hybridrt.layers.mamba1 import Mamba1, Mamba1Config
from hybridrt.layers.mamba2 import Limits, Mamba2, Mamba2Config
from hybridrt.layers.short_conv import ShortConv, ShortConvConfig
from hybridrt.models.stack_layer import LayerConfig, StackConfig


class Mamba1Layer(LayerConfig):
    """A Mamba-1 mixer."""

    intermediate_size: PositiveInt
    state_size: PositiveInt
    conv_kernel: PositiveInt = 4
    time_step_rank: PositiveInt
    use_bias: bool = False
    use_conv_bias: bool = True

    def make(self, model: StackConfig) -> nn.Module:
        sizes = self.model_dump(exclude={"type"})
        return Mamba1(Mamba1Config(hidden_size=model.hidden_size, **sizes))


class Mamba2Layer(LayerConfig):
    """A Mamba-2 mixer."""

    num_heads: PositiveInt
    head_dim: PositiveInt
    state_size: PositiveInt
    n_groups: PositiveInt = 1
    conv_kernel: PositiveInt = 4
    chunk_size: PositiveInt = 64
    use_bias: bool = False
    use_conv_bias: bool = True
    time_step_limit: Limits = (0.0, inf)
    norm_before_gate: bool = False

    def make(self, model: StackConfig) -> nn.Module:
        sizes = self.model_dump(exclude={"type"})
        config = Mamba2Config(hidden_size=model.hidden_size, norm_eps=model.rms_norm_eps, **sizes)
        return Mamba2(config)


class ShortConvLayer(LayerConfig):
    """A gated short convolution."""

    conv_kernel: int = Field(3, ge=2)
    use_bias: bool = False

    def make(self, model: StackConfig) -> nn.Module:
        sizes = self.model_dump(exclude={"type"})
        return ShortConv(ShortConvConfig(hidden_size=model.hidden_size, **sizes))


class GatedDeltaNetLayer(LayerConfig):
    """A Gated DeltaNet mixer."""

    num_key_heads: PositiveInt
    num_value_heads: PositiveInt
    key_head_dim: PositiveInt
    value_head_dim: PositiveInt
    conv_kernel: PositiveInt = 4

    def make(self, model: StackConfig) -> nn.Module:
        sizes = self.model_dump(exclude={"type"})
        return GatedDeltaNet(
            GatedDeltaNetConfig(hidden_size=model.hidden_size, norm_eps=model.rms_norm_eps, **sizes)
        )


class KimiDeltaAttentionLayer(LayerConfig):
    """Kimi Delta Attention."""

    num_heads: PositiveInt
    head_dim: PositiveInt
    conv_kernel: PositiveInt = 4

    def make(self, model: StackConfig) -> nn.Module:
        sizes = self.model_dump(exclude={"type"})
        return KimiDeltaAttention(
            KimiDeltaAttentionConfig(
                hidden_size=model.hidden_size, norm_eps=model.rms_norm_eps, **sizes
            )
        )


class LightningAttentionLayer(LayerConfig):
    """Lightning attention."""

    num_attention_heads: PositiveInt
    head_dim: PositiveInt
    decay_scale: PositiveFloat = 1.0

    def make(self, model: StackConfig) -> nn.Module:
        sizes = self.model_dump(exclude={"type"})
        return LightningAttention(
            LightningAttentionConfig(
                hidden_size=model.hidden_size, norm_eps=model.rms_norm_eps, **sizes
            )
        )
