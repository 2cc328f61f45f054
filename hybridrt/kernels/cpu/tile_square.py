"""Products of a bfloat16 matrix with some more vectors than a register of AMX holds.

Two registers of vectors are multiplied with two of weights, one after the other, so that memory is
read once for both, and what comes next is read between the products. Sums are those of `tiles`, bit
for bit.
"""

from typing import no_type_check

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import for_range
from numba.extending import intrinsic

from hybridrt.kernels.cpu.bfloat16 import halves, widen
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.streams import end_streams, stream, streams
from hybridrt.kernels.cpu.tile_registers import (
    HAS_TILES,
    REGISTER_BYTES,
    ROWS,
    SUMS,
    VECTORS,
    WEIGHTS,
    hold,
    in_registers,
    load_tile,
    multiply,
    offset,
    read_line,
    release_tiles,
    take_tiles,
)
from hybridrt.kernels.cpu.vectors import LANES, aligned, load, pointer, store, store_some

PANEL = 2 * ROWS
"""Outputs of a block, and the most vectors."""

STEP = 2 * ROWS
"""Inputs of a product of registers."""

AHEAD = 2048
"""Bytes from what is multiplied to what is read, beyond which more begins to be read."""

_ROW = 4 * ROWS  # bytes
_LINE = 64
_LONG = ir.IntType(64)


@intrinsic
@no_type_check
def _dot(typing_context, anew, weights, first, second, vector_bytes, steps, sums, ahead):
    """Multiplies two registers of vectors with a panel's weights of so many steps.

    `sums: float32[2, 2, ROWS, ROWS]`, of which the first axis is that of vectors, are added to or
    written `anew`. All but that and `steps` are addresses or bytes.
    """

    def code(context, builder, signature, args):
        if HAS_TILES:
            _write_dot(builder, *args)
        return context.get_dummy_value()

    return types.none(types.boolean, *[types.int64] * 7), code


@no_type_check
def _write_dot(b, anew, weights, first, second, vector_bytes, steps, sums, ahead):
    places = {total: b.add(sums, _LONG(REGISTER_BYTES * total)) for total in SUMS}
    with in_registers(b, anew, places, _ROW), for_range(b, steps) as loop:
        inputs = b.mul(loop.index, _LONG(2 * STEP))
        own = b.mul(loop.index, _LONG(2 * STEP * PANEL))
        for total in SUMS:
            half, output = total // 2, total % 2
            if output == 0:
                load_tile(b, VECTORS[0], b.add((first, second)[half], inputs), vector_bytes)
            place = offset(b, weights, own, _LONG(_ROW * output))
            load_tile(b, WEIGHTS, place, _LONG(4 * PANEL))
            for line in range(STEP * total // 4, STEP * (total + 1) // 4):
                read_line(b, offset(b, ahead, own, _LONG(_LINE * line)))
            multiply(b, "tdpbf16ps", total, VECTORS[0], WEIGHTS)


def is_square(width: int, tokens: int, inputs: int) -> bool:
    """Whether `multiply_square` takes so many tokens, and blocks of so many outputs."""
    return width == PANEL and ROWS < tokens <= PANEL and inputs % STEP == 0


@inner
@no_type_check
def _begin(totals, bias, size):  # pragma: no cover  (compiled, as all below)
    """Writes biases of `size` outputs where sums begin with them."""
    given = halves(bias, size)
    begins = aligned(PANEL)
    for i in range(PANEL):
        begins[i] = widen(given[i]) if i < size else 0
    for row in range(4 * ROWS):
        store(load(pointer(begins), ROWS * (row // ROWS % 2)), totals, ROWS * row)


@inner
@no_type_check
def multiply_square(
    worker, workers, x, weight, block_bytes, bias, out, tokens, outputs, inputs
):  # fmt: skip  # pragma: no cover
    """A worker's share of the outputs of more tokens than `ROWS`, up to `PANEL`.

    Inputs are whole steps. Both registers have as many tokens; one may be in both. All but the
    worker, how many there are, and the last three are addresses and bytes.
    """
    sums, tiles = aligned(4 * ROWS * ROWS), take_tiles(True)
    panels, rows = (outputs + PANEL - 1) // PANEL, (tokens + 1) // 2
    streaming = streams(tokens, out, 2 * outputs)
    hold(tiles, rows, ROWS)
    begin, end = panels * worker // workers, panels * (worker + 1) // workers
    for n in range(begin, end):
        size, block = min(PANEL, outputs - n * PANEL), weight + n * block_bytes
        totals = pointer(sums)  # here, as an array is given back after it was named last
        if bias != 0:
            _begin(totals, bias + 2 * n * PANEL, size)
        ahead = block + AHEAD if n + 1 < end else block  # behind the last one nothing may be
        _dot(
            bias == 0, block, x, x + 2 * inputs * (tokens - rows), 2 * inputs, inputs // STEP,
            sums.ctypes.data, ahead
        )  # fmt: skip
        for half in range(2):
            first = (tokens - rows) * half
            for t in range(rows):
                result = pointer(halves(out + 2 * ((first + t) * outputs + n * PANEL), size))
                if streaming:
                    at = (2 * half * ROWS + t) * ROWS
                    stream(load(totals, at), load(totals, at + ROWS * ROWS), result, 0)
                    continue
                for o in range(0, size, LANES):
                    found = load(totals, ((2 * half + o // LANES) * ROWS + t) * ROWS)
                    if o + LANES <= size:
                        store(found, result, o)
                    else:
                        store_some(found, result, o, size - o)
    if streaming:
        end_streams()
    release_tiles(tiles)
