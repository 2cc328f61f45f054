"""Dot products of rows of a bfloat16 matrix with some bfloat16 vectors, written out for LLVM.

Both are read as they stand in memory, pairs of numbers at a time. Where the processor multiplies
such pairs (AVX512-BF16) that is one instruction; elsewhere they are widened in registers. Sums are
float32, and a sum's order depends on the length alone: not on how many vectors there are.
"""

from collections.abc import Callable
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hybridrt.kernels.cpu.pairs import BY_PAIRS, add_product
from hybridrt.kernels.cpu.vector_math import sums_of_four
from hybridrt.kernels.cpu.vectors import INT32, LANES, all_lanes, begin_to_read

PAIRS = 2 * LANES
"""Numbers at a time: what the length has to be a multiple of."""
ROWS = 4
"""Of the matrix at once."""
AHEAD = 3 * ROWS
"""Rows, from beginning to read one to using it."""
VECTORS = (1, 2, 4, 6)
"""At once: with 6 the sums, a pair of each vector and those of the rows fill 32 registers."""

_LONG = ir.IntType(64)
_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(INT32, LANES)


@no_type_check
def make_dot(count: int, by_pairs: bool = BY_PAIRS) -> Callable[..., Any]:
    """A function `(rows, row_bytes, vectors, size, sums, stride)` for compiled code.

    `rows` is the address of the first of `ROWS` rows, `row_bytes` apart, of `size` numbers.
    `vectors` is that of `int64[count]`: the vectors' addresses. `sums` is that of float32, of
    which it writes row r's product with vector t to `[t * stride + r]`.
    """

    @intrinsic
    def dot(typing_context, rows, row_bytes, vectors, size, sums, stride):
        def code(context, builder, signature, args):
            _Dot(builder, count, by_pairs).write(*args)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 6), code

    return dot


@no_type_check
class _Dot:
    """Writes the instructions of one."""

    def __init__(self, builder, count, by_pairs):
        self.builder, self.count, self.by_pairs = builder, range(count), by_pairs

    def write(self, rows, row_bytes, vectors, size, sums, stride):
        b = self.builder
        rows = [b.add(rows, self._times(row_bytes, row)) for row in range(ROWS)]
        given = [b.load(self._pointer(vectors, 8 * t, _LONG)) for t in self.count]
        zero = all_lanes(0.0)
        totals = [[cgutils.alloca_once_value(b, zero) for _ in rows] for _ in self.count]
        for total in (total for of_vector in totals for total in of_vector):
            b.store(zero, total)
        with cgutils.for_range(b, b.udiv(size, _LONG(PAIRS))) as loop:
            offset = self._times(loop.index, 2 * PAIRS)
            matrix = [self._pairs(b.add(row, offset)) for row in rows]
            for row in rows:  # a CPU doesn't see that four runs go on elsewhere
                ahead = b.add(b.add(row, offset), self._times(row_bytes, AHEAD))
                begin_to_read(b, ahead, 2)
            for vector, of_vector in zip(given, totals, strict=True):
                numbers = self._pairs(b.add(vector, offset))
                for row, total in zip(matrix, of_vector, strict=True):
                    b.store(add_product(b, b.load(total), row, numbers, self.by_pairs), total)
        for t, of_vector in enumerate(totals):
            four = sums_of_four(b, *[b.load(total) for total in of_vector])
            to = b.add(sums, self._times(stride, 4 * t))
            b.store(four, self._pointer(to, 0, four.type), align=4)

    def _pairs(self, address):
        return self.builder.load(self._pointer(address, 0, _WORDS), align=2)

    def _pointer(self, address, offset, kind):
        return self.builder.inttoptr(self.builder.add(address, _LONG(offset)), kind.as_pointer())

    def _times(self, number, factor):
        return self.builder.mul(number, _LONG(factor))
