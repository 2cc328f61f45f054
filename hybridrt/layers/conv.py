"""The depthwise convolution's weights, in the shapes that checkpoints have them."""

from collections.abc import Mapping, Sequence

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


class FusedCausalConv1d(CausalConv1d):
    """Convolutions on channels side by side as one.

    `parts` maps the name that a checkpoint has for each, beside this module, to its channels.
    """

    def __init__(self, parts: Mapping[str, int], width: int, bias: bool) -> None:
        super().__init__(sum(parts.values()), width, bias)
        self.parts = dict(parts)

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """Each part under its own name; or so cut into equal parts, as transformers saves them."""
        sizes = list(self.parts.values())
        each = -(-sum(sizes) // len(sizes))
        equal = [min(each, sum(sizes) - each * i) for i in range(len(sizes))]
        return [self._layout(cut) for cut in ([sizes] if equal == sizes else [sizes, equal])]

    def _layout(self, sizes: list[int]) -> Mapping[str, Tensor]:
        layout: dict[str, Tensor] = {}
        for kind, parameter in self.named_parameters():
            rows = parameter.split(sizes)
            layout |= {f"{part}.{kind}": row for part, row in zip(self.parts, rows, strict=True)}
        return layout
