"""A short convolution that is added to what it is of (Inkling)."""

import math

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.causal_conv1d import causal_conv1d
from hybridrt.layers.cached import CachedLayer


class ResidualConv(CachedLayer):
    """`x + conv(x)`, channel by channel; in float32, as `weight: [channels, 1, width]` is.

    A page holds the convolution's last inputs, `conv_state: [width - 1, channels]`, oldest
    first, in the model's dtype. With `scaled` the sum is divided by the root of how many
    terms it has, `width + 1` (Inkling 2).
    """

    mixer = "residual_conv"

    def __init__(self, channels: int, width: PositiveInt, *, scaled: bool = False) -> None:
        super().__init__()
        self.terms = width + 1 if scaled else 1
        weight = torch.empty(channels, 1, width, dtype=torch.float32)
        self.weight = nn.Parameter(weight, requires_grad=False)

    @property
    def cache_spec(self) -> CacheSpec:
        channels, _, width = self.weight.shape
        return CacheSpec(
            "state", (State("conv_state", (width - 1, channels), self.dtype, axes=INPUTS),)
        )

    def _bind(self, *views: Tensor) -> None:
        (self.conv_state,) = views

    def forward(
        self, x: Float[Tensor, "tokens channels"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens channels"]:
        # Others want inputs, weights and states of one dtype.
        backend = self.state_backend if self.conv_state.dtype == torch.float32 else "reference"
        convolved = causal_conv1d(
            x.float(),
            self.weight[:, 0],
            None,
            self.conv_state,
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
            backend,
            activation=None,
        )
        return ((x + convolved) / math.sqrt(self.terms)).to(x.dtype)
