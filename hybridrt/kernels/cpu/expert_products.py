"""Products of the matrices of experts, which lie in blocks of outputs, with some vectors.

The functions here are compiled anew for each kind of matrices, so that nobody waits for the code of
a kind that isn't used.
"""

from typing import NamedTuple, no_type_check

import numpy as np
from numba.extending import overload
from torch import Tensor

from hybridrt.kernels.blocked_matrices import BlockedMatrices
from hybridrt.kernels.cpu.bfloat16 import singles
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.packed_linear import add_products
from hybridrt.kernels.cpu.quantised_linear import WIDENED, add_quantised, sum_groups
from hybridrt.kernels.cpu.tile_registers import multiplies_tiles
from hybridrt.kernels.cpu.vectors import aligned
from hybridrt.kernels.quantised_linear import GROUP, QuantisedMatrices


class Blocks(NamedTuple):
    """Addresses of all experts' blocks and biases, 0 where there are none.

    They are multiplied by tiles where `tiles`.
    """

    tiles: bool
    values: int
    bias: int


class QuantisedBlocks(NamedTuple):
    """The same with scales for every `group` of inputs, and numbers of so many `bits`."""

    tiles: bool
    values: int
    bias: int
    scales: int
    bits: int
    group: int


def blocks_of(
    matrices: BlockedMatrices | QuantisedMatrices, bias: Tensor | None
) -> Blocks | QuantisedBlocks:
    """Where they stand: contiguous tensors, which whoever holds the addresses has to hold."""
    tiles, at_bias = multiplies_tiles(), 0 if bias is None else bias.data_ptr()
    if isinstance(matrices, BlockedMatrices):
        return Blocks(tiles, matrices.blocks.data_ptr(), at_bias)
    bits = matrices.bits
    values, scales = matrices.values.data_ptr(), matrices.scales.data_ptr()
    return QuantisedBlocks(tiles, values, at_bias, scales, bits, GROUP[bits])


@no_type_check
def begins_of(blocks, vectors, size, count):
    """What the sums of each group of `count` vectors begin with; nothing where none are scaled."""


@overload(begins_of)
@no_type_check
def _begins_of(blocks, vectors, size, count):  # pragma: no cover  (compiled, as all below)
    def nothing(blocks, vectors, size, count):
        return np.empty(0, np.float32)

    def of_groups(blocks, vectors, size, count):
        begins = np.empty(count * size // blocks.group, np.float32)
        sum_groups(vectors, begins.ctypes.data, len(begins), blocks.group, blocks.bits)
        return begins

    return nothing if blocks.instance_class is Blocks else of_groups


@no_type_check
def make_room(blocks):
    """For the pairs that `multiply_block` widens weights to."""


@overload(make_room)
@no_type_check
def _make_room(blocks):  # pragma: no cover
    size = 0 if blocks.instance_class is Blocks else WIDENED
    return lambda blocks: aligned(size).view(np.uint32)


@no_type_check
def write_products(tiles, blocks, number, vectors, begins, a, size, count, sums, room, following):
    """Writes products of a block, by its number among those of all experts, to `sums`.

    By `tiles` that `take_tiles` gave, if any; of `count` vectors from the a-th on, all of which
    `begins` is for. `following` is the number of the block that is needed next.
    """


@overload(write_products)
@no_type_check
def _write_products(
    tiles, blocks, number, vectors, begins, a, size, count, sums, room, following
):  # fmt: skip  # pragma: no cover
    def plain(tiles, blocks, number, vectors, begins, a, size, count, sums, room, following):
        of_block, given = 2 * OUTPUTS * size, vectors + 2 * a * size
        block, then = blocks.values + of_block * number, blocks.values + of_block * following
        add_products(
            tiles, 1, block, given, 2 * size, size // 2, sums.ctypes.data, count, then
        )  # fmt: skip

    def quantised(tiles, blocks, number, vectors, begins, a, size, count, sums, room, following):
        of_block, given = blocks.bits * OUTPUTS // 8 * size, vectors + 2 * a * size
        block, then = blocks.values + of_block * number, blocks.values + of_block * following
        groups = size // blocks.group
        scales, begin = blocks.scales + 2 * OUTPUTS * groups * number, begins[a * groups :]
        sums[:count] = 0
        add_quantised(
            tiles, blocks.bits, block, scales, room.ctypes.data, given, begin.ctypes.data,
            sums.ctypes.data, count, size, groups, then
        )  # fmt: skip

    return plain if blocks.instance_class is Blocks else quantised


@inner
@no_type_check
def multiply_block(
    tiles, blocks, number, vectors, begins, a, size, count, sums, room, following
):  # fmt: skip  # pragma: no cover
    """Writes products of a block, and its biases."""
    write_products(tiles, blocks, number, vectors, begins, a, size, count, sums, room, following)
    if blocks.bias != 0:
        added = singles(blocks.bias + 4 * OUTPUTS * number, OUTPUTS)
        for t in range(count):
            for i in range(OUTPUTS):
                sums[t, i] += added[i]
