"""Products of the matrices of experts, which lie in blocks of outputs, with some vectors.

The functions here are compiled anew for each kind of matrices, so that nobody waits for the code of
a kind that isn't used.
"""

from typing import NamedTuple, no_type_check

from numba.extending import overload
from torch import Tensor

from hybridrt.kernels.blocked_matrices import BlockedMatrices
from hybridrt.kernels.cpu.bfloat16 import as_words, singles
from hybridrt.kernels.cpu.jit import argument, inner
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.packed_linear import add_products
from hybridrt.kernels.cpu.quantised_linear import WIDENED, add_quantised
from hybridrt.kernels.cpu.tile_registers import multiplies_tiles
from hybridrt.kernels.cpu.vectors import aligned
from hybridrt.kernels.cpu.whole_inputs import make_whole, row_bytes
from hybridrt.kernels.quantised_linear import GROUP, QuantisedMatrices


@argument
class Blocks(NamedTuple):
    """Addresses of all experts' blocks and biases, 0 where there are none.

    They are multiplied by tiles where `tiles`.
    """

    tiles: bool
    values: int
    bias: int


@argument
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
def room_for_rows(blocks, size, count):
    """For what `make_row` writes of so many vectors."""


@overload(room_for_rows)
@no_type_check
def _room_for_rows(blocks, size, count):  # pragma: no cover  (compiled, as all below)
    def nothing(blocks, size, count):
        return aligned(0)

    def of_rows(blocks, size, count):
        return aligned(count * row_bytes(size, size // blocks.group) // 4)

    return nothing if blocks.instance_class is Blocks else of_rows


@no_type_check
def _make_row(a, blocks, vectors, size, rows):
    """Makes a vector whole numbers, where those are multiplied."""


@overload(_make_row)
@no_type_check
def _make_row_of(a, blocks, vectors, size, rows):  # pragma: no cover
    def nothing(a, blocks, vectors, size, rows):
        pass

    def whole(a, blocks, vectors, size, rows):
        step = row_bytes(size, size // blocks.group)
        given, row = vectors + 2 * a * size, rows.ctypes.data + a * step
        make_whole(given, row, size, blocks.group, blocks.bits, blocks.tiles)

    return nothing if blocks.instance_class is Blocks else whole


@inner
@no_type_check
def make_row(a, blocks, vectors, size, rows):  # pragma: no cover
    """Makes the a-th vector whole numbers, where those are multiplied."""
    _make_row(a, blocks, vectors, size, rows)


@no_type_check
def make_room(blocks):
    """For the pairs that `multiply_block` widens weights to."""


@overload(make_room)
@no_type_check
def _make_room(blocks):  # pragma: no cover
    size = 0 if blocks.instance_class is Blocks else WIDENED
    return lambda blocks: as_words(aligned(size))


@no_type_check
def write_products(tiles, blocks, number, vectors, rows, a, size, count, sums, room, following):
    """Writes products of a block, by its number among those of all experts, to `sums`.

    By `tiles` that `take_tiles` gave, if any; of `count` vectors from the a-th on, all of which
    `rows` are of. `following` is the number of the block that is needed next.
    """


@overload(write_products)
@no_type_check
def _write_products(
    tiles, blocks, number, vectors, rows, a, size, count, sums, room, following
):  # fmt: skip  # pragma: no cover
    def plain(tiles, blocks, number, vectors, rows, a, size, count, sums, room, following):
        of_block, given = 2 * OUTPUTS * size, vectors + 2 * a * size
        block, then = blocks.values + of_block * number, blocks.values + of_block * following
        add_products(
            tiles, 1, block, given, 2 * size, size // 2, sums.ctypes.data, count, then
        )  # fmt: skip

    def quantised(tiles, blocks, number, vectors, rows, a, size, count, sums, room, following):
        of_block = blocks.bits * OUTPUTS // 8 * size
        block, then = blocks.values + of_block * number, blocks.values + of_block * following
        groups = size // blocks.group
        scales = blocks.scales + 2 * OUTPUTS * groups * number
        given = rows.ctypes.data + row_bytes(size, groups) * a
        sums[:count] = 0
        add_quantised(
            tiles, blocks.bits, block, scales, room.ctypes.data, given, sums.ctypes.data, count,
            size, groups, then
        )  # fmt: skip

    return plain if blocks.instance_class is Blocks else quantised


@inner
@no_type_check
def multiply_block(
    tiles, blocks, number, vectors, rows, a, size, count, sums, room, following
):  # fmt: skip  # pragma: no cover
    """Writes products of a block, and its biases."""
    write_products(tiles, blocks, number, vectors, rows, a, size, count, sums, room, following)
    if blocks.bias != 0:
        added = singles(blocks.bias + 4 * OUTPUTS * number, OUTPUTS)
        for t in range(count):
            for i in range(OUTPUTS):
                sums[t, i] += added[i]
