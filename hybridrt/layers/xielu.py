"""A feed-forward layer without a gate, bent by xIELU (Apertus, arXiv 2509.14233)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.kernels.reference.xielu import xielu
from hybridrt.layers.linear import Linear


class XIELU(nn.Module):
    """See `hybridrt.kernels.reference.xielu`. Checkpoints have all four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p, self.alpha_n = (
            nn.Parameter(torch.empty(1), requires_grad=False) for _ in range(2)
        )
        self.beta, self.eps = (nn.Parameter(torch.empty(()), requires_grad=False) for _ in range(2))

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        return xielu(x, self.alpha_p, self.alpha_n, self.beta, self.eps)


class XIELUMLP(nn.Module):
    """`down(xielu(up(x)))`."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.act_fn = XIELU()
        self.down_proj = Linear(intermediate_size, hidden_size)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        return self.down_proj(self.act_fn(self.up_proj(x)))
