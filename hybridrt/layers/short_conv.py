"""The gated short convolution of LFM2 (Liquid AI, 2025)."""

from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.causal_conv1d import causal_conv1d
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.conv import CausalConv1d
from hybridrt.layers.linear import Linear
from hybridrt.values import Value


class ShortConvConfig(Value):
    """Sizes. LFM2's `conv_L_cache` is `conv_kernel`, its `conv_bias` is `use_bias`."""

    hidden_size: PositiveInt
    conv_kernel: int = Field(3, ge=2)
    use_bias: bool = False


class ShortConv(CachedLayer):
    """`C * conv(B * x)`, with B, C and x of every token out of one projection.

    A page holds the convolution's last inputs, `conv_state: [conv_kernel - 1,
    hidden_size]`, oldest first.
    """

    mixer = "short_conv"

    def __init__(self, config: ShortConvConfig) -> None:
        super().__init__()
        self.config = config
        hidden, bias = config.hidden_size, config.use_bias
        self.in_proj = Linear(hidden, 3 * hidden, bias)
        self.conv = CausalConv1d(hidden, config.conv_kernel, bias)
        self.out_proj = Linear(hidden, hidden, bias)

    @property
    def cache_spec(self) -> CacheSpec:
        shape = (self.config.conv_kernel - 1, self.config.hidden_size)
        return CacheSpec("state", (State("conv_state", shape, self.dtype, axes=INPUTS),))

    def _bind(self, *views: Tensor) -> None:
        (self.conv_state,) = views

    def forward(
        self, hidden: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        B, C, x = self.in_proj(hidden).chunk(3, dim=-1)
        y = causal_conv1d(
            x,
            self.conv.taps,
            self.conv.bias,
            self.conv_state,
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
            self.state_backend,
            activation=None,
            before=B,
            after=C,
        )
        return self.out_proj(y)
