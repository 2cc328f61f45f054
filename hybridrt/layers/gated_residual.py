"""Several residual streams, which each layer mixes by gates and adds to by weights (Qwen4-Exp).

Its own kind of hyper-connections (arXiv 2409.19606). The streams of a token lie side by side.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.layers.linear import Linear
from hybridrt.layers.norm import GroupedOffsetRMSNorm


class StreamMixer(nn.Module):
    """The mean over all streams, each normed and times a gate of every channel.

    The gates come from all streams through `rank` channels.
    """

    def __init__(self, hidden_size: int, streams: int, rank: int, norm_eps: float) -> None:
        super().__init__()
        self.streams = streams
        self.hc_norm = GroupedOffsetRMSNorm(streams * hidden_size, norm_eps, streams)
        self.input_mix_weight_down = Linear(streams * hidden_size, rank)
        self.input_mix_weight_up = Linear(rank, streams * hidden_size)

    def forward(self, x: Float[Tensor, "tokens streams"]) -> Float[Tensor, "tokens hidden"]:
        return self._mix(self.hc_norm(x))

    def _mix(self, normed: Float[Tensor, "tokens streams"]) -> Float[Tensor, "tokens hidden"]:
        low = F.silu(self.input_mix_weight_down(normed) / self.streams)
        gates = self.input_mix_weight_up(low).sigmoid()
        return (gates * normed).unflatten(-1, (self.streams, -1)).mean(1)


class GatedResidual(StreamMixer):
    """What goes into a layer, and how much of what comes out is added to each stream."""

    def __init__(self, hidden_size: int, streams: int, rank: int, norm_eps: float) -> None:
        super().__init__(hidden_size, streams, rank, norm_eps)
        self.block_inject_weight = Linear(streams * hidden_size, streams)

    def split(
        self, x: Float[Tensor, "tokens streams"]
    ) -> tuple[Float[Tensor, "tokens hidden"], Float[Tensor, "tokens count"]]:
        """The layer's input, and a weight between 0 and 2 of each stream."""
        normed = self.hc_norm(x)
        weights = 2 * (self.block_inject_weight(normed) / self.streams).sigmoid()
        return self._mix(normed), weights


def add_to_streams(
    x: Float[Tensor, "tokens streams"],
    out: Float[Tensor, "tokens hidden"],
    weights: Float[Tensor, "tokens count"],
) -> Float[Tensor, "tokens streams"]:
    """The streams with a layer's output added, times each stream's weight."""
    return x + (out[:, None] * weights[..., None]).flatten(1)
