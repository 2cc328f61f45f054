"""Square blocks of numbers turned around in registers, written out for LLVM.

Number by number it takes several times as long: each is written to a line of its own.
"""

from typing import no_type_check

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hybridrt.kernels.cpu.vectors import INT32, LANES, stored


@intrinsic
@no_type_check
def turn(typing_context, given, place, step, to, to_place, to_step):
    """Writes rows of a block as columns.

    Its `LANES` rows of as many elements begin at `place`, `step` elements apart, those that are
    written at `to_place` of what has the same dtype.
    """

    def code(context, builder, signature, args):
        _write(builder, *stored(given), *args)
        return context.get_dummy_value()

    assert given.dtype == to.dtype
    return types.void(given, types.intp, types.intp, to, types.intp, types.intp), code


@no_type_check
def _write(b, of, _, align, given, place, step, to, to_place, to_step):
    def at(base, first, apart, row):
        offset = b.add(first, b.mul(apart, ir.Constant(ir.IntType(64), row)))
        return b.bitcast(b.gep(base, [offset]), of.as_pointer())

    lanes = range(LANES)
    rows = [b.load(at(given, place, step, row), align=align) for row in lanes]
    apart = LANES // 2
    while apart:  # swaps the upper right and the lower left quarter of ever smaller blocks
        upper = [lane if not lane & apart else lane - apart + LANES for lane in lanes]
        lower = [lane + apart if not lane & apart else lane + LANES for lane in lanes]
        for row in lanes:
            if not row & apart:
                pair = rows[row], rows[row + apart]
                for into, order in ((row, upper), (row + apart, lower)):
                    mask = ir.Constant(ir.VectorType(INT32, LANES), order)
                    rows[into] = b.shuffle_vector(*pair, mask)
        apart //= 2
    for row in lanes:
        b.store(rows[row], at(to, to_place, to_step, row), align=align)
