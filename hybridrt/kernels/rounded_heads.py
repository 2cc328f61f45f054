"""A weight of each head in 8 or 4 bits, as steps of decodes read MLA's."""

from dataclasses import dataclass
from math import gcd

import torch
from jaxtyping import BFloat16, Float, UInt8
from torch import Tensor

from hybridrt.kernels.backend import numba_takes
from hybridrt.kernels.quantised_linear import GROUP, Bits, QuantisedMatrices
from hybridrt.kernels.room import OF_ITS_OWN, Room

FEWEST = 32
"""Inputs that share a scale, at least."""


@dataclass(frozen=True, slots=True)
class RoundedHeads:
    """What a `QuantisedWeight` has, of each head."""

    values: UInt8[Tensor, "heads blocks groups group_bytes"]
    scales: BFloat16[Tensor, "heads blocks groups block"]
    bits: int
    outputs: int

    @property
    def num_bytes(self) -> int:
        """What is read of it."""
        return self.values.nbytes + self.scales.nbytes


def can_round_heads(weight: Float[Tensor, "heads outputs inputs"], bits: Bits) -> bool:
    """Whether there is a kernel that reads it, and its inputs are groups of `FEWEST` at least."""
    fits = _group(weight, bits) >= FEWEST
    return fits and weight.dtype == torch.bfloat16 and numba_takes(weight)


def round_heads(
    weight: Float[Tensor, "heads outputs inputs"], bits: Bits, room: Room = OF_ITS_OWN
) -> tuple[RoundedHeads, BFloat16[Tensor, "heads outputs inputs"]]:
    """The weight rounded, in `room`, and what it stands for.

    As many inputs share a scale as in a `QuantisedWeight`, or half of them, or a quarter.
    """
    heads = QuantisedMatrices(weight, bits, room, _group(weight, bits))
    rounded = RoundedHeads(heads.values, heads.scales, bits, heads.outputs)
    return rounded, torch.stack([heads[i].dequantised() for i in range(len(heads))])


def _group(weight: Float[Tensor, "heads outputs inputs"], bits: Bits) -> int:
    return gcd(weight.shape[2], GROUP[bits])
