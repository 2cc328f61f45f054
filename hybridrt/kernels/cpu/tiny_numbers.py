"""How a thread computes with numbers of float32 below 1e-38, which take it many times as long.

For processors with SSE: each has a register that says so, of its own for every thread.
"""

from typing import no_type_check

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once
from numba.extending import intrinsic

from hybridrt.kernels.cpu.vectors import INT32, call

_ARE_ZERO = 1 << 15 | 1 << 6  # what is computed, and what is read


@intrinsic
@no_type_check
def take_as_zero(typing_context):
    """Has this thread take them as 0, as AMX does, and returns for `take_as_before` how it did."""

    def code(context, builder, signature, args):
        place = alloca_once(builder, INT32)
        _call(builder, "stmxcsr", place)
        before = builder.load(place)
        builder.store(builder.or_(before, INT32(_ARE_ZERO)), place)
        _call(builder, "ldmxcsr", place)
        return before

    return types.uint32(), code


@intrinsic
@no_type_check
def take_as_before(typing_context, before):
    """Undoes `take_as_zero`."""

    def code(context, builder, signature, args):
        place = alloca_once(builder, INT32)
        builder.store(args[0], place)
        _call(builder, "ldmxcsr", place)
        return context.get_dummy_value()

    return types.none(types.uint32), code


@no_type_check
def _call(builder, name, place):
    address = builder.bitcast(place, ir.IntType(8).as_pointer())
    call(builder, f"llvm.x86.sse.{name}", ir.VoidType(), [address])
