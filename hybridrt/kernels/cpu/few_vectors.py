"""Products of a bfloat16 matrix with a few vectors, added as AMX adds them, written out for LLVM.

Registers of AMX are filled from sixteen places of memory, of which they wait for the last. For few
vectors memory is all that takes time, and read line by line it gives a quarter more.

Of `2 * ROWS` inputs AMX adds products of the even ones, from zero on, and of the odd ones, then
both sums, and then that to what the inputs before gave. So do these, and more vectors can be left
to it. (But numbers below 2^-126, which are zero to AMX.)
"""

from collections.abc import Callable
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic

from hybridrt.kernels.blocked_matrices import BLOCK as OUTPUTS
from hybridrt.kernels.cpu.jit import inner_exact
from hybridrt.kernels.cpu.pairs import add_halves
from hybridrt.kernels.cpu.vectors import INT32, LANES, all_lanes, begin_to_read, in_each_lane

FEW = 2
"""Vectors; with more of them the registers of AMX are faster."""

STEP = 16
"""Pairs of inputs, as a register of AMX has them."""

AHEAD = 1024
"""Bytes by which reading is ahead: half a page, as the next page's address isn't known earlier."""

_REGISTERS = OUTPUTS // LANES
_LONG = ir.IntType(64)
_FLOATS, _PAIRS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(INT32, LANES)


@no_type_check
def _make_dot(count: int) -> Callable[..., Any]:
    """A function `(anew, weights, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums,
    ahead)`, like that of `multiply_few`, for at most `STEP` pairs or whole steps of them.

    With every pair it begins to read the next row of those that begin at `ahead`.
    """

    @intrinsic
    def dot(
        context, anew, weights, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums, ahead
    ):
        def code(context, builder, signature, args):
            _write(builder, count, *args)
            return context.get_dummy_value()

        return types.none(types.boolean, *[types.int64] * 8), code

    return dot


_dot_1, _dot_2 = (_make_dot(count + 1) for count in range(FEW))


@no_type_check
def _write(
    b, count, anew, weights, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums, ahead
):  # fmt: skip
    def load(address, kind, align):
        return b.load(b.inttoptr(address, kind.as_pointer()), align=align)

    def line(row, r):
        return b.add(row, b.add(b.mul(half_bytes, _LONG(r // 2)), _LONG(4 * LANES * (r % 2))))

    zero, places = all_lanes(0.0), [(t, r) for t in range(count) for r in range(_REGISTERS)]
    to = {(t, r): b.add(sums, _LONG(4 * (t * OUTPUTS + r * LANES))) for t, r in places}
    totals = {place: alloca_once_value(b, zero) for place in places}
    halves = {place: [alloca_once_value(b, zero) for _ in range(2)] for place in places}
    for place, total in totals.items():
        b.store(zero, total)
        with b.if_then(b.not_(anew)):
            b.store(load(to[place], _FLOATS, 4), total)
    given = [b.add(vectors, b.mul(vector_bytes, _LONG(t))) for t in range(count)]
    some = b.select(b.icmp_signed("<", pairs, _LONG(STEP)), pairs, _LONG(STEP))
    with for_range(b, b.udiv(pairs, some)) as step:
        for even, odd in halves.values():
            b.store(zero, even)
            b.store(zero, odd)
        first = b.mul(step.index, some)
        with for_range(b, some) as loop:
            pair = b.add(first, loop.index)
            row, row_ahead = (b.add(base, b.mul(pair, row_bytes)) for base in (weights, ahead))
            for r in range(_REGISTERS):
                begin_to_read(b, line(row_ahead, r))
            own = [load(line(row, r), _PAIRS, 4) for r in range(_REGISTERS)]
            for t, vector in enumerate(given):
                inputs = in_each_lane(b, load(b.add(vector, b.mul(pair, _LONG(4))), INT32, 2))
                for r, pairs_of_weights in enumerate(own):
                    add_halves(b, halves[t, r], pairs_of_weights, inputs)
        for place, (even, odd) in halves.items():
            both = b.fadd(b.load(even), b.load(odd))
            b.store(b.fadd(b.load(totals[place]), both), totals[place])
    for place, total in totals.items():
        b.store(b.load(total), b.inttoptr(to[place], _FLOATS.as_pointer()), align=4)


@inner_exact  # as the order of additions counts
@no_type_check
def multiply_few(
    anew, block, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums, count, following
):  # fmt: skip  # pragma: no cover  (compiled)
    """See `add_by_tiles`, which this is for up to `FEW` vectors."""
    last, done = max(0, pairs // STEP - 1) * STEP, 0  # the last whole step begins there
    while done < pairs:
        own, given = block + row_bytes * done, vectors + 4 * done
        if done < last:
            some, ahead = last, own + AHEAD
        else:
            some, ahead = min(STEP, pairs - done), following + row_bytes * (done - last)
        ahead = own if following == 0 else ahead
        if count == 1:
            _dot_1(
                anew, own, row_bytes, half_bytes, given, vector_bytes, some, sums, ahead
            )  # fmt: skip
        else:
            _dot_2(
                anew, own, row_bytes, half_bytes, given, vector_bytes, some, sums, ahead
            )  # fmt: skip
        done += some
        anew = False
