"""The gated feed-forward layer."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.layers.linear import FusedLinear, Linear


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (arXiv 2002.05202)."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False) -> None:
        super().__init__()
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj = FusedLinear(hidden_size, parts, bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate).mul_(up))
