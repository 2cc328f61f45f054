"""The matrix product of a linear layer whose weight has 8 or 4 bits a number."""

from typing import Literal

from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.kernels.backend import numba_takes
from hybridrt.kernels.blocked_matrices import BLOCK
from hybridrt.kernels.reference import quantised_linear as reference
from hybridrt.kernels.room import OF_ITS_OWN, Room

Bits = Literal[8, 4]
Quantization = Literal["int8", "int4"]

BITS: dict[Quantization, Bits] = {"int8": 8, "int4": 4}

GROUP: dict[Bits, int] = {8: 128, 4: 32}
"""Neighbouring inputs of an output that share a scale."""


class QuantisedWeight(nn.Module):
    """A weight as whole numbers and their scales, in blocks of `BLOCK` outputs.

    `values: uint8[blocks, inputs / group, group bytes]`. With 8 bits a group is `[group / 2, BLOCK,
    2]`, int8. With 4 it is `[group / 8, BLOCK]` words: of eight inputs 0, 2, 4, 6, 1, 3, 5, 7, from
    the lowest bits up, each plus 8. `scales: bfloat16[blocks, inputs / group, BLOCK]`. Behind the
    last output are zeros.
    """

    values: Tensor
    scales: Tensor

    def __init__(self, values: Tensor, scales: Tensor, bits: Bits, outputs: int) -> None:
        super().__init__()
        self.bits: Bits = bits
        self.outputs = outputs
        self.register_buffer("values", values, persistent=False)
        self.register_buffer("scales", scales, persistent=False)

    @property
    def num_bytes(self) -> int:
        """What is read of it."""
        return self.values.nbytes + self.scales.nbytes

    @property
    def inputs(self) -> int:
        """What it is multiplied with."""
        return _inputs(self.values, self.bits)

    @property
    def num_weights(self) -> int:
        """How many numbers it stands for."""
        return self.outputs * self.inputs

    def dequantised(self) -> Float[Tensor, "outputs inputs"]:
        """The weight that it stands for, in bfloat16."""
        return reference.dequantise_weight(self.values, self.scales, self.bits, self.outputs)


class QuantisedMatrices(nn.Module):
    """Stacked matrices, rounded: what a `QuantisedWeight` has, of each; on a CPU in `room`."""

    values: Tensor
    scales: Tensor

    def __init__(
        self,
        stacked: Float[Tensor, "experts outputs inputs"],
        bits: Bits,
        room: Room = OF_ITS_OWN,
        group: int | None = None,
    ) -> None:
        super().__init__()
        self.bits: Bits = bits
        self.outputs = stacked.shape[1]
        for index, matrix in enumerate(stacked):  # one by one, as rounding takes memory
            one = quantise_weight(matrix, bits, group=group)
            if index == 0:
                for name, part in (("values", one.values), ("scales", one.scales)):
                    self.register_buffer(
                        name, room.new_empty(part, len(stacked), *part.shape), False
                    )
            self.values[index], self.scales[index] = one.values, one.scales

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> QuantisedWeight:
        return QuantisedWeight(self.values[index], self.scales[index], self.bits, self.outputs)

    @property
    def inputs(self) -> int:
        """Of every matrix."""
        return _inputs(self.values[0], self.bits)


def _inputs(values: UInt8[Tensor, "blocks groups group_bytes"], bits: Bits) -> int:
    """Of a weight: bits of a row of blocks."""
    return values.shape[1] * values.shape[2] * 8 // (bits * BLOCK)


def can_quantise(weight: Float[Tensor, "outputs inputs"], bits: Bits) -> bool:
    """Whether its inputs are whole groups."""
    return weight.shape[1] % GROUP[bits] == 0


def quantise_weight(
    weight: Float[Tensor, "outputs inputs"],
    bits: Bits,
    room: Room = OF_ITS_OWN,
    group: int | None = None,
) -> QuantisedWeight:
    """Rounds every weight to a multiple of its group's scale; on a CPU what it gives is in `room`.

    A group has as many inputs as `GROUP` says, if not given; not more.

    A scale is the weight that is furthest from 0, divided by -128 with 8 bits, by -8 with 4. So
    a weight is off by at most half of that scale, or by one where it is as far on the other
    side; of normally distributed weights the root of the mean square is 0.7 % and 9 % of theirs.
    """
    values, scales = reference.quantise_weight(weight, bits, group or GROUP[bits], BLOCK)
    return QuantisedWeight(room.moved(values), room.moved(scales), bits, len(weight))


def quantised_linear(
    x: Float[Tensor, "*batch inputs"],
    weight: QuantisedWeight,
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*batch outputs"]:
    """`x W^T + b` with the dequantised weight, summed in float32."""
    if numba_takes(x):
        from hybridrt.kernels.cpu import quantised_linear as cpu

        rows = x.reshape(-1, x.shape[-1])
        of_weight = (weight.values, weight.scales, weight.bits, weight.outputs)
        out = cpu.quantised_linear(rows, *of_weight).view(*x.shape[:-1], weight.outputs)
        return out if bias is None else out + bias
    return F.linear(x, weight.dequantised().to(x.dtype), bias)
