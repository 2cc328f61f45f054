"""The mixture of experts of Phi-3.5-MoE: two experts a token, whose weights don't add up to 1."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.reference.sparse_mixer import sparse_mixer
from hybridrt.layers.moe import MoE, MoEConfig, Router


class SparseMixerRouter(Router):
    """Chooses as `hybridrt.kernels.reference.sparse_mixer` does, in float32."""

    def __init__(self, config: MoEConfig, jitter: float) -> None:
        super().__init__(config)
        self.jitter = jitter

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> tuple[Tensor, Tensor]:
        return sparse_mixer(F.linear(x.float(), self.weight.float()), self.jitter)


class SparseMixerMoE(MoE):
    """Experts behind a `SparseMixerRouter`.

    Raises:
        ValueError: other than two experts a token are asked for.
    """

    def __init__(self, config: MoEConfig, jitter: float) -> None:
        if config.num_experts_per_tok != 2:
            raise ValueError(f"num_experts_per_tok={config.num_experts_per_tok} should be 2")
        super().__init__(config)
        self.gate = SparseMixerRouter(config, jitter)
