"""Products of a bfloat16 matrix, as oneDNN packs it, with some vectors, written out for LLVM.

oneDNN's blocks of `OUTPUTS` outputs have pairs of neighbouring inputs side by side:
`[inputs / 2, OUTPUTS, 2]`. So a register holds such a pair for each of 16 outputs, and one
instruction (AVX512-BF16) multiplies them with a vector's pair, adds both, and adds to the sums.
Each sum goes on from input to input, however many vectors there are.
"""

from collections.abc import Callable
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic

from hybridrt.kernels.blocked_matrices import BLOCK as OUTPUTS
from hybridrt.kernels.cpu.pairs import add_product
from hybridrt.kernels.cpu.vectors import INT32, LANES, all_lanes, begin_to_read, in_each_lane

REGISTERS = OUTPUTS // LANES
MOST_VECTORS = 6
"""At once: their sums, a pair of each output and of one vector fill the 32 registers."""

LINE = 64
"""Bytes that a processor reads at a time."""

_LONG = ir.IntType(64)
_FLOATS, _PAIRS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(INT32, LANES)


@no_type_check
def make_packed_dot(count: int, lines: int) -> Callable[..., Any]:
    """A function `(block, vectors, vector_bytes, pairs, sums, ahead)` for compiled code.

    All are addresses or numbers: of a block, of the first of `count` vectors, `vector_bytes`
    apart, of so many pairs, and of `float32[count, OUTPUTS]`, to which it adds. With every pair it
    begins to read the next so many `lines` of those that lie `ahead` bytes behind the first one.
    """

    @intrinsic
    def dot(typing_context, block, vectors, vector_bytes, pairs, sums, ahead):
        def code(context, builder, signature, args):
            _write(builder, count, lines, *args)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 6), code

    return dot


@no_type_check
def _write(b, count, lines, block, vectors, vector_bytes, pairs, sums, ahead):
    def at(address, kind):
        return b.inttoptr(address, kind.as_pointer())

    def place(t, r):
        return at(b.add(sums, _LONG(4 * (t * OUTPUTS + r * LANES))), _FLOATS)

    places = [(t, r) for t in range(count) for r in range(REGISTERS)]
    totals = {(t, r): alloca_once_value(b, all_lanes(0.0)) for t, r in places}
    for (t, r), total in totals.items():
        b.store(b.load(place(t, r), align=4), total)
    first_ahead = b.add(block, ahead)
    given = [b.add(vectors, b.mul(vector_bytes, _LONG(t))) for t in range(count)]
    with for_range(b, pairs) as loop:
        row = b.add(block, b.mul(loop.index, _LONG(4 * OUTPUTS)))
        for line in range(lines):
            number = b.add(b.mul(loop.index, _LONG(lines)), _LONG(line))
            begin_to_read(b, b.add(first_ahead, b.mul(number, _LONG(LINE))))
        weights = [
            b.load(at(b.add(row, _LONG(4 * LANES * r)), _PAIRS), align=4) for r in range(REGISTERS)
        ]
        for t, vector in enumerate(given):
            pair = b.load(at(b.add(vector, b.mul(loop.index, _LONG(4))), INT32), align=2)
            pair = in_each_lane(b, pair)
            for r, weight in enumerate(weights):
                total = totals[t, r]
                b.store(add_product(b, b.load(total), weight, pair), total)
    for (t, r), total in totals.items():
        b.store(b.load(total), place(t, r), align=4)
