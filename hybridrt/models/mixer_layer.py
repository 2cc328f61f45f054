"""The layer of stacks whose every layer is one mixer, or several side by side."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.norm import RMSNorm
from hybridrt.models.stream import Hidden, StreamLayer


class Parallel(nn.Module):
    """Mixers on the same input, added up."""

    def __init__(self, mixers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(mixers)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        first, *others = (_run(mixer, x, batch) for mixer in self.mixers)
        return sum(others, start=first)


class MixerLayer(StreamLayer):
    """`x + mixer(norm(x))`, where the mixer may be a feed-forward layer."""

    entry_norm = "norm"

    def __init__(self, hidden_size: int, norm_eps: float, mixer: nn.Module) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size, norm_eps)
        self.mixer = mixer

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        return x, _run(self.mixer, normed, batch)


def _run(
    mixer: nn.Module, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
) -> Float[Tensor, "tokens hidden"]:
    return mixer(x, batch) if isinstance(mixer, CachedLayer | Parallel) else mixer(x)
