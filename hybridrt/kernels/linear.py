"""The matrix product of a linear layer, and the layout of its weight that suits the device."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.kernels import odd_linear
from hybridrt.kernels.backend import has_numba, numba_takes, triton_takes
from hybridrt.kernels.blocked_matrices import BLOCK, BlockedMatrices
from hybridrt.kernels.gated import gated
from hybridrt.kernels.quantised_linear import (
    QuantisedMatrices,
    QuantisedWeight,
    quantised_linear,
)
from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.room import OF_ITS_OWN, Room

FEWEST_SINGLES = 2**18
"""Numbers in a weight of float32 from which on oneDNN's call costs less than it saves: 1 MiB."""

PackedMatrices = nn.ParameterList | QuantisedMatrices | BlockedMatrices
"""Matrices in a layout of the device, or quantised, where plain ones are stacked in a tensor."""


def pack_weight(weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "outputs inputs"]:
    """The weight as `linear` reads it fastest: itself, or a copy in oneDNN's own layout.

    On a CPU that multiplies bfloat16, oneDNN would bring the weight into that layout at
    every call. oneDNN's results are the same bit for bit. Of float32 it takes large ones, for
    which it needs less time than what torch calls. The copy has the same shape, dtype and
    size, but its elements can't be looked at.
    """
    if weight.device.type != "cpu" or not _onednn_takes(weight):
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


class BlockedWeight:
    """A packed weight of which it is known how it lies in memory.

    In blocks of `width` outputs `[inputs / 2, width, 2]`, filled up with zeros. `address` is
    that of the first block; `packed` holds the memory: oneDNN's, or a tensor of such blocks.
    `multiply` takes inputs of at most `most` numbers.
    """

    def __init__(self, packed: Tensor, shape: Sequence[int], width: int = BLOCK) -> None:
        from hybridrt.kernels.cpu.packed_linear import most_tokens, packed_linear

        self.packed = packed
        self.outputs, self.inputs = shape
        self.multiply, self.most = packed_linear, most_tokens() * self.inputs
        self.width, self.num_blocks = width, -(-self.outputs // width)
        onednn, is_onednn = torch.ops.mkldnn, packed.is_mkldnn
        self.address: int = onednn.data_ptr(packed) if is_onednn else packed.data_ptr()
        num_bytes: int = onednn._nbytes(packed) if is_onednn else packed.nbytes
        self.block_bytes = num_bytes // self.num_blocks

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a packed weight can't be copied: it is known by its place in memory")

    def plain(self) -> Float[Tensor, "outputs inputs"]:
        """A copy of a weight as it was whose blocks we laid."""
        return self.packed.transpose(1, 2).reshape(-1, self.inputs)[: self.outputs]

    def has_blocks_of(self, weight: Float[Tensor, "outputs inputs"]) -> bool:
        """Whether the first block and the last one hold what they should of the plain weight."""
        width, pairs = self.width, self.block_bytes // (2 * 2 * self.width)
        if 2 * pairs < self.inputs or 2 * 2 * width * pairs != self.block_bytes:
            return False
        for number in {0, self.num_blocks - 1}:
            rows = weight[width * number : width * (number + 1)].view(torch.int16)
            block = torch.zeros(width, 2 * pairs, dtype=torch.int16)
            block[: len(rows), : self.inputs] = rows
            memory = (ctypes.c_int16 * block.numel()).from_address(
                self.address + number * self.block_bytes
            )
            found = torch.from_numpy(np.ctypeslib.as_array(memory)).view(pairs, width, 2)
            if not torch.equal(found, block.view(width, pairs, 2).transpose(0, 1)):
                return False
        return True


def find_blocks(
    packed: Float[Tensor, "outputs inputs"], weight: Float[Tensor, "outputs inputs"]
) -> BlockedWeight | None:
    """What `pack_weight` made of a weight, if a kernel of our own can read it."""
    is_known = packed.is_mkldnn and weight.dtype == torch.bfloat16
    if not is_known or weight.shape[1] % 2 or not has_numba(weight):
        return None
    from hybridrt.kernels.cpu.vectors import HAS_REGISTERS

    if not HAS_REGISTERS or not hasattr(torch.ops.mkldnn, "data_ptr"):
        return None
    blocked = BlockedWeight(packed, weight.shape)
    return blocked if blocked.has_blocks_of(weight) else None


def lay_blocks(
    weight: Float[Tensor, "outputs inputs"], room: Room = OF_ITS_OWN
) -> BlockedWeight | None:
    """The weight in blocks that we lay ourselves, where our kernel takes any number of tokens."""
    if not numba_takes(weight) or weight.shape[1] % 2:
        return None
    from hybridrt.kernels.cpu.packed_linear import ANY_NUMBER, most_tokens
    from hybridrt.kernels.cpu.tile_registers import multiplies_tiles
    from hybridrt.kernels.cpu.vectors import HAS_VECTORS

    if not HAS_VECTORS or most_tokens() != ANY_NUMBER:
        return None
    outputs, pairs = len(weight), weight.shape[1] // 2
    width = BLOCK // 2 if multiplies_tiles() else BLOCK
    blocks = room.new_empty(weight, -(-outputs // width), pairs, width, 2)
    rows = weight.detach().contiguous().view(torch.int32)  # pairs, which go together
    rows = F.pad(rows, (0, 0, 0, -outputs % width)) if outputs % width else rows
    blocks.view(torch.int32).squeeze(-1).copy_(rows.view(-1, width, pairs).transpose(1, 2))
    return BlockedWeight(blocks, weight.shape, width)


def lay_out(
    weight: Float[Tensor, "outputs inputs"], room: Room = OF_ITS_OWN
) -> Tensor | BlockedWeight:
    """The weight as `linear` reads it fastest: in blocks, as `pack_weight` makes it, or itself.

    Blocks that we lay have their memory of `room`.
    """
    blocked = lay_blocks(weight, room)
    if blocked is not None:
        return blocked
    packed = pack_weight(weight)
    return find_blocks(packed, weight) or packed


def linear(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"] | QuantisedWeight | BlockedWeight,
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*batch outputs"]:
    """`x W^T + b`, with a weight as it is, or as packing or rounding made it, summed in float32."""
    if isinstance(weight, QuantisedWeight):
        return quantised_linear(x, weight, bias)
    if isinstance(weight, BlockedWeight):
        if x.numel() <= weight.most and numba_takes(*((x,) if bias is None else (x, bias))):
            of_blocks = weight.address, weight.width, weight.block_bytes
            return weight.multiply(x, *of_blocks, bias, weight.outputs)
        weight = weight.packed if weight.packed.is_mkldnn else weight.plain()
    if weight.is_mkldnn:
        bias = None if bias is None else bias.contiguous()  # it would read over gaps
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    if triton_takes(x):
        from hybridrt.kernels.triton import few_rows, one_row

        if one_row.takes(x, weight):
            return one_row.one_row_linear(x, weight, bias)
        if few_rows.takes(x, weight):
            return few_rows.few_rows_linear(x, weight, bias)
        if odd_linear.takes(x, weight):
            return odd_linear.odd_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def gated_linear(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"] | QuantisedWeight | BlockedWeight,
    bias: Float[Tensor, " outputs"] | None,
    gating: Gating,
) -> Float[Tensor, "*batch inner"]:
    """`gated` of what `linear` gives: the same numbers, at once where that takes less time."""
    given = (x,) if bias is None else (x, bias)
    if gating == "silu" and isinstance(weight, BlockedWeight) and numba_takes(*given):
        from hybridrt.kernels.cpu import packed_gated

        tokens = x.numel() // weight.inputs
        if packed_gated.takes(tokens, weight.width, weight.outputs, weight.inputs):
            of_blocks = weight.address, weight.width, weight.block_bytes
            return packed_gated.packed_gated(x, *of_blocks, bias, weight.outputs)
    return gated(linear(x, weight, bias), gating)


def linear_each(
    x: Float[Tensor, "*batch inputs"],
    weights: Sequence[Float[Tensor, "_ inputs"] | QuantisedWeight | BlockedWeight],
    biases: Sequence[Float[Tensor, " _"] | None],
) -> tuple[Float[Tensor, "*batch _"], ...]:
    """`linear` of x with each of the weights; two at once, where that takes less time."""
    if len(weights) == 2 and triton_takes(x):
        from hybridrt.kernels.triton import one_row, one_row_pair

        plain = [w for w in weights if isinstance(w, Tensor) and one_row.takes(x, w)]
        if len(plain) == 2:
            return one_row_pair.one_row_pair(x, plain, biases)
    return tuple(linear(x, *pair) for pair in zip(weights, biases, strict=True))


def _onednn_takes(weight: Float[Tensor, "outputs inputs"]) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.float32:
        return weight.numel() >= FEWEST_SINGLES
    return weight.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
