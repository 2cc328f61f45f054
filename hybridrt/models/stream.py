"""The residual stream of a stack of layers."""

from collections.abc import Iterable
from typing import ClassVar, TypeGuard

from jaxtyping import Float
from torch import Tensor, nn
from torch.compiler import is_compiling

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.add import add
from hybridrt.layers.norm import add_and_norm
from hybridrt.layers.watched import is_watched

Hidden = Float[Tensor, "tokens hidden"]
"""The stream, or what a layer makes of it."""


class StreamLayer(nn.Module):
    """A layer that norms the stream first, and adds to it last.

    Layers one behind the other leave their last sums to the norm of the next one, which takes both
    in one kernel. A layer says in `advance` what it does between the two; its call is both, and
    what a stack of such layers computes is what their calls do.

    Attributes:
        entry_norm: the name of the first norm.
        scale: what the last part is multiplied by when it is added.
    """

    entry_norm: ClassVar[str] = "input_layernorm"
    scale: float = 1.0

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        """The stream behind all but the last sum, and what is still to be added to it.

        `normed` is what the first norm makes of `x`.
        """
        raise NotImplementedError

    def forward(self, x: Hidden, batch: ForwardBatch) -> Hidden:
        return add(*self.advance(x, getattr(self, self.entry_norm)(x), batch), self.scale)


def run_layers(
    layers: Iterable[nn.Module],
    last_norm: nn.Module,
    x: Hidden,
    batch: ForwardBatch,
) -> Float[Tensor, "tokens _"]:
    """`x` behind all layers, each called with it and the batch, and the norm of the last.

    A layer that somebody watches is called, so that hooks see the whole of what it makes.
    """
    rest: Tensor | None = None  # what the layer before has left to be added
    scale = 1.0  # and what it is multiplied by
    for layer in layers:
        if _leaves_its_sum(layer):
            x, normed = _normed(x, rest, scale, getattr(layer, layer.entry_norm))
            (x, rest), scale = layer.advance(x, normed, batch), layer.scale
        else:
            x, rest = layer(x if rest is None else add(x, rest, scale), batch), None
    return _normed(x, rest, scale, last_norm)[1]


def _leaves_its_sum(layer: nn.Module) -> TypeGuard[StreamLayer]:
    """Whether the layer's call is that of `StreamLayer`, and nothing else. Compilers get calls."""
    is_plain = type(layer).forward is StreamLayer.forward
    return is_plain and not is_compiling() and not is_watched(layer)


def _normed(x: Tensor, rest: Tensor | None, scale: float, norm: nn.Module) -> tuple[Tensor, Tensor]:
    return (x, norm(x)) if rest is None else add_and_norm(x, rest, norm, scale)
