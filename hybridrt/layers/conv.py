"""The depthwise convolution's weights, in the shape that checkpoints have them."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class CausalConv1d(nn.Module):
    """Holds `weight: [channels, 1, width]` and `bias`; the mixer runs it with its state."""

    def __init__(self, channels: int, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(channels), requires_grad=False) if bias else None

    @property
    def taps(self) -> Float[Tensor, "channels width"]:
        """The weight without the axis of size 1."""
        return self.weight[:, 0]
