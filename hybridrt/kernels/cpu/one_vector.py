"""Products of a bfloat16 matrix with one vector, added as AMX adds them, written out for LLVM.

Registers of AMX are filled from sixteen places of memory, of which they wait for the last. For one
vector memory is all that takes time, and read line by line it gives a sixth more.

Of `2 * STEP` inputs AMX adds products of the even ones, from zero on, and of the odd ones, then
both sums, and then that to what the inputs before gave. So does this, and more vectors can be left
to it. (But numbers below 2^-126, which are zero to AMX.)
"""

from typing import Any, no_type_check

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic

from hybridrt.kernels.blocked_matrices import BLOCK as OUTPUTS
from hybridrt.kernels.cpu.jit import inner_exact
from hybridrt.kernels.cpu.pairs import add_halves
from hybridrt.kernels.cpu.vectors import INT32, LANES, all_lanes, begin_to_read, in_each_lane

STEP = 16
"""Pairs of inputs, as a register of AMX has them."""

AHEAD = 1024
"""Bytes by which reading into the nearest cache is ahead; a page ahead is slower by a tenth."""

FURTHER = 2048
"""Bytes by which reading into the second cache is further ahead: the nearest one can wait for a few
lines only."""

_REGISTERS = range(OUTPUTS // LANES)
_LONG = ir.IntType(64)
_FLOATS, _PAIRS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(INT32, LANES)


@intrinsic
@no_type_check
def _dot(context, anew, weights, row_bytes, half_bytes, vector, pairs, sums, ahead):
    """Like `multiply_one`, for at most `STEP` pairs or whole steps of them.

    With every pair it begins to read the next row of those that begin at `ahead`, and further on.
    """

    def code(context, builder, signature, args):
        _write(builder, *args)
        return context.get_dummy_value()

    return types.none(types.boolean, *[types.int64] * 7), code


@no_type_check
def _write(b, anew, weights, row_bytes, half_bytes, vector, pairs, sums, ahead):
    def load(address: Any, kind: Any, align: int) -> Any:
        return b.load(b.inttoptr(address, kind.as_pointer()), align=align)

    def line(row: Any, r: int) -> Any:
        return b.add(row, b.add(b.mul(half_bytes, _LONG(r // 2)), _LONG(4 * LANES * (r % 2))))

    zero, to = all_lanes(0.0), [b.add(sums, _LONG(4 * r * LANES)) for r in _REGISTERS]
    totals, evens, odds = ([alloca_once_value(b, zero) for _ in _REGISTERS] for _ in range(3))
    for place, total in zip(to, totals, strict=True):
        b.store(zero, total)
        with b.if_then(b.not_(anew)):
            b.store(load(place, _FLOATS, 4), total)
    some = b.select(b.icmp_signed("<", pairs, _LONG(STEP)), pairs, _LONG(STEP))
    with for_range(b, b.udiv(pairs, some)) as step:
        for half in evens + odds:
            b.store(zero, half)
        first = b.mul(step.index, some)
        with for_range(b, some) as loop:
            pair = b.add(first, loop.index)
            row, row_ahead = (b.add(base, b.mul(pair, row_bytes)) for base in (weights, ahead))
            for r in _REGISTERS:
                begin_to_read(b, line(row_ahead, r))
                begin_to_read(b, b.add(line(row_ahead, r), _LONG(FURTHER)), 2)
            inputs = in_each_lane(b, load(b.add(vector, b.mul(pair, _LONG(4))), INT32, 2))
            for r in _REGISTERS:
                add_halves(b, (evens[r], odds[r]), load(line(row, r), _PAIRS, 4), inputs)
        for total, even, odd in zip(totals, evens, odds, strict=True):
            b.store(b.fadd(b.load(total), b.fadd(b.load(even), b.load(odd))), total)
    for place, total in zip(to, totals, strict=True):
        b.store(b.load(total), b.inttoptr(place, _FLOATS.as_pointer()), align=4)


@inner_exact  # as the order of additions counts
@no_type_check
def multiply_one(
    anew, block, row_bytes, half_bytes, vector, pairs, sums, following
):  # fmt: skip  # pragma: no cover  (compiled)
    """See `add_by_tiles`, which this is for one vector."""
    last, done = max(0, pairs // STEP - 1) * STEP, 0  # the last whole step begins there
    while done < pairs:
        own, given = block + row_bytes * done, vector + 4 * done
        if done < last:
            some, ahead = last, own + AHEAD
        else:
            some, ahead = min(STEP, pairs - done), following + row_bytes * (done - last)
        ahead = own if following == 0 else ahead
        _dot(anew, own, row_bytes, half_bytes, given, some, sums, ahead)
        done += some
        anew = False
