"""Results written past the caches, for kernels whose weights come from memory.

A line of memory that no cache has is read before a store changes it there. What the last layer's
results were written to has left the caches by then, for the weights that were read since: of 32
tokens' products that took a sixth of the time.
"""

from typing import no_type_check

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.tile_registers import HAS_TILES
from hybridrt.kernels.cpu.vectors import FLOATS, INT32, LANES, LINE, call, narrow

FEWEST_BYTES = 4096
"""From a token's results to the next one's: with nearer ones 32 tokens gained nothing, and 128 lost
what the next kernel found in a cache."""

MOST_TOKENS = 192
"""Fewer than threads share out: of those each reads next what it wrote itself, from its cache."""


@inner
@no_type_check
def streams(tokens, out, step):  # pragma: no cover  (compiled)
    """Whether results should be written so: whole lines at `out`, `step` bytes apart.

    Only where that was measured: on processors with AMX.
    """
    wide = step >= FEWEST_BYTES and (out | step) % LINE == 0
    return HAS_TILES and wide and 1 < tokens < MOST_TOKENS


@intrinsic
@no_type_check
def stream(typing_context, first, second, to, place):
    """Writes a line of 16-bit numbers, all lanes of both; others see it behind `end_streams`."""

    def code(context, builder, signature, args):
        *both, to_first, place = args
        halves = [narrow(builder, floats, to.dtype) for floats in both]
        lanes = ir.Constant(ir.VectorType(INT32, 2 * LANES), list(range(2 * LANES)))
        line = builder.shuffle_vector(*halves, lanes)
        address = builder.bitcast(builder.gep(to_first, [place]), line.type.as_pointer())
        written = builder.store(line, address, align=LINE)
        written.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(INT32, 1)]))
        return context.get_dummy_value()

    return types.void(FLOATS, FLOATS, to, types.intp), code


@intrinsic
@no_type_check
def end_streams(typing_context):
    """Has everybody see what `stream` wrote before what is written from now on."""

    def code(context, builder, signature, args):
        if HAS_TILES:
            call(builder, "llvm.x86.sse.sfence", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), code
