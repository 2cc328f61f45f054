"""Residual connections with learned weights (ZAYA1, arXiv 2511.17127)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ResidualScale(nn.Module):
    """`(out + bias) * scale` beside the same of the stream, channel by channel."""

    def __init__(self, size: int) -> None:
        super().__init__()
        (
            self.hidden_states_scale,
            self.hidden_states_bias,
            self.residual_scale,
            self.residual_bias,
        ) = (nn.Parameter(torch.empty(size), requires_grad=False) for _ in range(4))

    def forward(
        self, out: Float[Tensor, "tokens hidden"], x: Float[Tensor, "tokens hidden"]
    ) -> Float[Tensor, "tokens hidden"]:
        out = (out + self.hidden_states_bias) * self.hidden_states_scale
        return out + (x + self.residual_bias) * self.residual_scale
