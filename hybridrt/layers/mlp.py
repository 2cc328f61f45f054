"""Feed-forward layers, with a gate or without."""

from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.kernels.reference.gates import ACTIVATIONS, Activation
from hybridrt.layers.linear import FusedLinear, Linear, project_gated


class MLP(nn.Module):
    """`down(act(gate(x)) * up(x))`: SwiGLU, or GeGLU (arXiv 2002.05202)."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj = FusedLinear(hidden_size, parts, bias, fused="gate_up_proj")
        self.down_proj = Linear(intermediate_size, hidden_size, bias)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        return self.down_proj(project_gated(x, self.gate_up_proj, self.activation))


class UngatedMLP(nn.Module):
    """`down(act(up(x)))`, as in the first transformers."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, bias: bool, activation: Activation
    ) -> None:
        super().__init__()
        self.act = ACTIVATIONS[activation]
        self.up_proj = Linear(hidden_size, intermediate_size, bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        return self.down_proj(self.act(self.up_proj(x)))
