"""A short convolution whose weights each token has a say in (Inkling 2)."""

import math

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.recent_inputs import recent_inputs
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.linear import Linear


class DynamicConv(CachedLayer):
    """`x + conv(x)`, divided by the root of `2 * width + 1`, in float32.

    Tap i is of the input i tokens ago. It is `static_w[i]`, channel by channel, and what
    `weight_proj` makes for it of the token that goes with x, one number a head. A page holds the
    convolution's last inputs, `conv_state: [width - 1, channels]`, oldest first, in the model's
    dtype.
    """

    mixer = "dynamic_conv"

    def __init__(
        self, hidden_size: PositiveInt, num_heads: PositiveInt, head_dim: PositiveInt, width: int
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        static = torch.empty(width, num_heads * head_dim)
        self.static_w = nn.Parameter(static, requires_grad=False)
        self.weight_proj = Linear(hidden_size, num_heads * width)

    @property
    def cache_spec(self) -> CacheSpec:
        width, channels = self.static_w.shape
        return CacheSpec(
            "state", (State("conv_state", (width - 1, channels), self.dtype, axes=INPUTS),)
        )

    def _bind(self, *views: Tensor) -> None:
        (self.conv_state,) = views

    def forward(
        self,
        x: Float[Tensor, "tokens channels"],
        source: Float[Tensor, "tokens hidden"],
        batch: ForwardBatch,
    ) -> Float[Tensor, "tokens channels"]:
        """`source` is what x was made of."""
        recent = recent_inputs(
            x,
            self.conv_state,
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
        ).float()
        taps = self.weight_proj(source).float().unflatten(-1, (self.num_heads, -1)).flip(-1)
        by_head = recent.unflatten(-1, (self.num_heads, -1))  # [tokens, width, heads, head_dim]
        convolved = torch.einsum("twhd,thw->thd", by_head, taps).flatten(1)
        convolved = convolved + (recent * self.static_w.float().flip(0)).sum(1)
        return ((x + convolved) / math.sqrt(2 * len(self.static_w) + 1)).to(x.dtype)
