"""Feed-forward layers without a gate: `down(relu(up(x))^2)` (Primer, arXiv 2109.08668)."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.kernels.relu2 import relu2
from hybridrt.kernels.relu2_moe import relu2_experts
from hybridrt.layers.linear import Linear
from hybridrt.layers.moe import Experts, MoEConfig, Router


class Relu2MLP(nn.Module):
    """`down(relu(up(x))^2)`."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False) -> None:
        super().__init__()
        self.up_proj = Linear(hidden_size, intermediate_size, bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        return self.down_proj(relu2(self.up_proj(x)))


class Relu2Experts(Experts):
    """The weights of all experts: `up_proj [E, I, H]` and `down_proj [E, H, I]`."""

    def __init__(self, num_experts: int, inner: int, hidden: int) -> None:
        nn.Module.__init__(self)
        self.up_proj = nn.Parameter(torch.empty(num_experts, inner, hidden), requires_grad=False)
        self.down_proj = nn.Parameter(torch.empty(num_experts, hidden, inner), requires_grad=False)

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """Split, two matrices an expert; or stacked as they are here."""
        split = {
            f"experts.{e}.{name}.weight": matrix
            for name, stacked in self.named_parameters()
            for e, matrix in enumerate(stacked)
        }
        return [split, {f"experts.{name}": part for name, part in self.named_parameters()}]


class Relu2MoE(nn.Module):
    """Routed experts, and one shared by all tokens, all of them without gates.

    With a `latent_size` the routed experts work on a projection of the token to that size,
    and what they give together is projected back (Nemotron 3, arXiv 2512.20848).
    """

    def __init__(self, config: MoEConfig, latent_size: int | None = None) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, config.shared_bias
        self.gate = Router(config)
        self.experts = Relu2Experts(
            config.num_experts, config.moe_intermediate_size, latent_size or hidden
        )
        self.shared_experts = (
            Relu2MLP(hidden, config.shared_intermediate_size, bias)
            if config.shared_intermediate_size
            else None
        )
        self.fc1_latent_proj = Linear(hidden, latent_size, bias) if latent_size else None
        self.fc2_latent_proj = Linear(latent_size, hidden, bias) if latent_size else None

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        ids, weights = self.gate(x)
        latent = x if self.fc1_latent_proj is None else self.fc1_latent_proj(x)
        out = relu2_experts(latent, self.experts.up_proj, self.experts.down_proj, ids, weights)
        if self.fc2_latent_proj is not None:
            out = self.fc2_latent_proj(out)
        return out if self.shared_experts is None else out + self.shared_experts(x)
