"""Linear layers: one matrix, or several of a checkpoint's fused into one."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.compiler import is_compiling

from hybridrt.kernels.gated import gated
from hybridrt.kernels.linear import (
    BlockedWeight,
    gated_linear,
    lay_out,
    linear,
    linear_each,
)
from hybridrt.kernels.quantised_linear import (
    Bits,
    QuantisedWeight,
    can_quantise,
    quantise_weight,
)
from hybridrt.kernels.reference.gates import Activation
from hybridrt.kernels.room import OF_ITS_OWN, Room
from hybridrt.layers.watched import is_watched


class Linear(nn.Module):
    """`x W^T + b`, with `weight: [out_features, in_features]`.

    With `packs=False` the weight stays as it is, for whoever reads it beside `forward`.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, *, packs: bool = True
    ) -> None:
        super().__init__()
        self.packs = packs
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.quantised: QuantisedWeight | None = None
        self.blocked: BlockedWeight | None = None
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        return linear(x, self.held, self.bias)

    @property
    def held(self) -> Tensor | QuantisedWeight | BlockedWeight:
        """The weight as `linear` is given it."""
        return self.blocked or self.quantised or self.weight

    @property
    def num_bytes(self) -> int:
        """What is read of the weight."""
        return self.weight.nbytes if self.quantised is None else self.quantised.num_bytes

    def pack(self, bits: Bits | None = None, room: Room = OF_ITS_OWN) -> None:
        """Brings the weight into the device's own layout, or into numbers of so many bits.

        Where that isn't a library's own, it stands in `room`. From then on only `forward` reads the
        weight, but with `packs=False`. A weight that is shared with another module stays as it is
        there, and one whose inputs aren't whole groups has its own dtype.
        """
        if self.quantised is not None or self.blocked is not None:
            return
        if not self.packs:
            self.weight.data = room.moved(self.weight.data)
            return
        if bits is not None and can_quantise(self.weight, bits):
            self.quantised = quantise_weight(self.weight, bits, room)
            packed = self.weight.to("meta")  # its shape is left, and no memory
        else:
            packed = lay_out(self.weight, room)
            if isinstance(packed, BlockedWeight):
                self.blocked, packed = packed, packed.packed
                if not packed.is_mkldnn:  # but blocks of our own
                    packed = self.weight.to("meta")
        if packed is not self.weight:
            self.weight = nn.Parameter(packed, requires_grad=False)


class FusedLinear(Linear):
    """Several linear layers on the same input as one matrix product.

    `parts` maps the name that a checkpoint has for each, beside this module, to its
    number of outputs: `FusedLinear(512, {"q_proj": 512, "k_proj": 128, "v_proj": 128})`.
    `fused` is the name in checkpoints that have all of them as one, in this order. `order` says
    for each output which of a checkpoint's rows it is, if not the one in its place; `sort`, once
    the weights are there, spares every call that.
    """

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        bias: bool = False,
        *,
        fused: str | None = None,
        order: Int64[Tensor, " outputs"] | None = None,
    ) -> None:
        super().__init__(in_features, sum(parts.values()), bias)
        self.parts = dict(parts)
        self.fused = fused
        self.order: Tensor | None
        self.register_buffer("order", order, persistent=False)
        self.is_sorted = order is None

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """The outputs of all parts side by side, in order."""
        out = super().forward(x)
        return out if self.is_sorted else out[..., self.order]

    def places_of(self, rows: Int64[Tensor, " rows"]) -> Int64[Tensor, " rows"]:
        """Which outputs these rows of the parts make, counted over all of them."""
        return rows if self.order is None else self.order.argsort().cpu()[rows]

    def sort(self) -> None:
        """Brings the rows into the order of the outputs."""
        if self.is_sorted:
            return
        for name, parameter in [*self.named_parameters(recurse=False)]:
            setattr(self, name, nn.Parameter(parameter[self.order], requires_grad=False))
        self.is_sorted = True

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """Each part under its own name; or all of them as one. Sorted rows are copied back."""
        whole = {kind: self._as_loaded(p) for kind, p in self.named_parameters()}
        layout: dict[str, Tensor] = {}
        for kind, parameter in whole.items():
            rows = parameter.split(list(self.parts.values()))
            layout |= {f"{part}.{kind}": row for part, row in zip(self.parts, rows, strict=True)}
        if self.fused is None:
            return [layout]
        return [layout, {f"{self.fused}.{kind}": part for kind, part in whole.items()}]

    def _as_loaded(self, parameter: nn.Parameter) -> Tensor:
        if self.order is None or not self.is_sorted:
            return parameter
        return parameter[self.order.argsort()]


def project_each(
    x: Float[Tensor, "*batch inputs"], *layers: Linear
) -> tuple[Float[Tensor, "*batch _"], ...]:
    """Each layer's output of x, at once where their calls are `linear` and nothing else."""
    if is_compiling() or any(type(m) is not Linear or is_watched(m) for m in layers):
        return tuple(layer(x) for layer in layers)
    return linear_each(x, [layer.held for layer in layers], [layer.bias for layer in layers])


def project_gated(
    x: Float[Tensor, "*batch inputs"], layer: FusedLinear, activation: Activation
) -> Float[Tensor, "*batch inner"]:
    """`gated` of the layer's output, at once where its call is `linear` and nothing else."""
    is_plain = type(layer) is FusedLinear and layer.is_sorted and not is_watched(layer)
    if is_compiling() or not is_plain:
        return gated(layer(x), activation)
    return gated_linear(x, layer.held, layer.bias, activation)


def plain_weight(layer: Linear) -> Float[Tensor, "outputs inputs"] | None:
    """The weight as it is, if the layer's call is a product with that and nothing else."""
    is_plain = type(layer) is Linear or (type(layer) is FusedLinear and layer.is_sorted)
    if not is_plain or layer.bias is not None or is_watched(layer):
        return None
    return layer.held if isinstance(layer.held, Tensor) else None


def by_kind(heads: int, sizes: Sequence[int]) -> Int64[Tensor, " rows"]:
    """The `order` that sorts rows of heads, each of which has so many of every kind, by kind."""
    # On the CPU, even where a model is built without memory.
    rows = torch.arange(heads * sum(sizes), device="cpu").view(heads, -1).split(list(sizes), dim=1)
    return torch.cat([part.flatten() for part in rows])
