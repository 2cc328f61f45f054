"""Products of a bfloat16 matrix, as oneDNN packs it, with some vectors, written out for LLVM.

oneDNN's blocks of `OUTPUTS` outputs have pairs of neighbouring inputs side by side:
`[inputs / 2, OUTPUTS, 2]`. So a register holds such a pair for each of 16 outputs. Where that is
faster, one instruction (AVX512-BF16) multiplies them with a vector's pair, adds both, and adds to
the sums; elsewhere both halves are widened, and multiplied one after the other. Each sum goes on
from input to input, however many vectors there are.
"""

from collections.abc import Callable, Iterable
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once, alloca_once_value, for_range
from numba.extending import intrinsic

from hybridrt.kernels.blocked_matrices import BLOCK as OUTPUTS
from hybridrt.kernels.cpu.pairs import BY_PAIRS, add_product, as_singles
from hybridrt.kernels.cpu.vectors import (
    INT32,
    LANES,
    all_lanes,
    begin_to_read,
    call,
    first_lanes,
    in_each_lane,
)

REGISTERS = OUTPUTS // LANES
MOST_VECTORS = 6
"""At once: their sums, a pair of each output and of one vector fill the 32 registers."""

LINE = 64
"""Bytes that a processor reads at a time."""

WIDENED = 64
"""Pairs of each vector that are widened at once: what they become stays in the nearest cache."""

_WIDE_BYTES = 2 * 4 * WIDENED  # of a vector

_LONG = ir.IntType(64)
_FLOAT = ir.FloatType()
_FLOATS, _PAIRS = ir.VectorType(_FLOAT, LANES), ir.VectorType(INT32, LANES)


@no_type_check
def make_packed_dot(
    counts: Iterable[int], lines: int, by_pairs: bool = BY_PAIRS, widened: bool = False
) -> Callable[..., Any]:
    """A function `(count, room, block, vectors, vector_bytes, pairs, sums, ahead)`, compiled.

    All are addresses or numbers: one of `counts`, what `room_for_inputs` gives, of a block, of the
    first of `count` vectors, `vector_bytes` apart, of so many pairs, and of
    `float32[count, OUTPUTS]`, to which it adds. With every pair it begins to read the next so many
    `lines` of those that lie from `ahead` on. A block that is `widened` is what `widen_block`
    writes.
    """

    @intrinsic
    def dot(context, count, room, block, vectors, vector_bytes, pairs, sums, ahead):
        def code(context, builder, signature, args):
            for number in counts:
                with builder.if_then(builder.icmp_signed("==", args[0], _LONG(number))):
                    _Dot(builder, number, lines, widened).write(by_pairs, *args[1:])
            return context.get_dummy_value()

        return types.none(*[types.int64] * 8), code

    return dot


@intrinsic
@no_type_check
def room_for_inputs(typing_context):
    """The address of room that is there until the function ends which asks for it."""

    def code(context, builder, signature, args):
        room = ir.ArrayType(_FLOATS, MOST_VECTORS * _WIDE_BYTES // (4 * LANES))
        return builder.ptrtoint(alloca_once(builder, room), _LONG)

    return types.int64(), code


@intrinsic
@no_type_check
def widen_block(typing_context, block, pairs, room):
    """Writes so many of a block's pairs as `float32[pairs, 2, OUTPUTS]`. Takes addresses."""

    def code(context, builder, signature, args):
        _Dot(builder, 0, 0, False).widen_block(*args)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), code


@no_type_check
class _Dot:
    """Writes the instructions of one."""

    def __init__(self, builder, count, lines, widened):
        self.builder, self.lines, self.vectors = builder, lines, range(count)
        self.widened = widened
        places = [(t, r) for t in self.vectors for r in range(REGISTERS)]
        self.totals = {place: alloca_once_value(builder, all_lanes(0.0)) for place in places}

    def write(self, by_pairs, room, block, vectors, vector_bytes, pairs, sums, ahead):
        b = self.builder
        to = {
            (t, r): self._at(sums, 4 * (t * OUTPUTS + r * LANES), _FLOATS) for t, r in self.totals
        }
        for place, total in self.totals.items():
            b.store(b.load(to[place], align=4), total)
        given = [b.add(vectors, b.mul(vector_bytes, _LONG(t))) for t in self.vectors]
        if by_pairs:
            self._add_pairs(block, given, pairs, ahead)
        else:
            self._add_halves(room, block, given, pairs, ahead)
        for place, total in self.totals.items():
            b.store(b.load(total), to[place], align=4)

    def widen_block(self, block, pairs, room):
        b = self.builder
        with for_range(b, pairs) as loop:
            to = b.add(room, self._times(loop.index, 2 * 4 * OUTPUTS))
            for half, weights in enumerate(self._halves(block, loop.index)):
                for r, weight in enumerate(weights):
                    at = self._at(to, 4 * (half * OUTPUTS + LANES * r), _FLOATS)
                    b.store(weight, at, align=4)

    def _add_pairs(self, block, vectors, pairs, ahead):
        b = self.builder
        with for_range(b, pairs) as loop:
            self._begin_to_read(ahead, loop.index)
            weights = self._weights(block, loop.index, _PAIRS, 4 * OUTPUTS, 0)
            for t, vector in enumerate(vectors):
                pair = self._at(b.add(vector, self._times(loop.index, 4)), 0, INT32)
                pair = in_each_lane(b, b.load(pair, align=2))
                for r, weight in enumerate(weights):
                    total = self.totals[t, r]
                    b.store(add_product(b, b.load(total), weight, pair, True), total)

    def _add_halves(self, room, block, vectors, pairs, ahead):
        """Some pairs at a time, whose inputs are widened beforehand: all outputs use them."""
        b, most = self.builder, _LONG(WIDENED)
        parts = b.udiv(b.add(pairs, _LONG(WIDENED - 1)), most)
        with for_range(b, parts) as part:
            first = b.mul(part.index, most)
            left = b.sub(pairs, first)
            some = b.select(b.icmp_signed("<", left, most), left, most)
            for t, vector in enumerate(vectors):
                own = b.add(room, _LONG(t * _WIDE_BYTES))
                self._widen(b.add(vector, self._times(first, 4)), some, own)
            with for_range(b, some) as loop:
                pair = b.add(first, loop.index)
                self._begin_to_read(ahead, pair)
                of_pair = b.add(room, self._times(loop.index, 4))
                # The second halves first, as an instruction for pairs adds them.
                for half, weights in reversed([*enumerate(self._halves(block, pair))]):
                    for t in self.vectors:
                        at = self._at(of_pair, t * _WIDE_BYTES + half * 4 * WIDENED, _FLOAT)
                        x = in_each_lane(b, b.load(at))
                        for r, weight in enumerate(weights):
                            total = self.totals[t, r]
                            args = [weight, x, b.load(total)]
                            b.store(call(b, f"llvm.fma.v{LANES}f32", _FLOATS, args), total)

    def _widen(self, pairs, count, room):
        """Writes the first of each pair, and behind `WIDENED` of those the second."""
        b = self.builder
        with for_range(b, b.udiv(b.add(count, _LONG(LANES - 1)), _LONG(LANES))) as loop:
            at, place = self._times(loop.index, 4 * LANES), self._times(loop.index, LANES)
            there = first_lanes(b, b.sub(count, place))
            read = [self._at(b.add(pairs, at), 0, _PAIRS), ir.Constant(INT32, 2), there]
            read.append(ir.Constant(_PAIRS, None))
            words = call(b, f"llvm.masked.load.v{LANES}i32.p0", _PAIRS, read)
            for half, singles in enumerate(as_singles(b, words)):
                b.store(singles, self._at(b.add(room, at), half * 4 * WIDENED, _FLOATS))

    def _halves(self, block, pair):
        """Of a pair's weights the first ones, and the second ones, in float32."""
        if self.widened:
            size = 2 * 4 * OUTPUTS
            return [self._weights(block, pair, _FLOATS, size, half) for half in range(2)]
        weights = self._weights(block, pair, _PAIRS, 4 * OUTPUTS, 0)
        return zip(*(as_singles(self.builder, weight) for weight in weights), strict=True)

    def _weights(self, block, pair, kind, pair_bytes, half):
        row = self.builder.add(block, self._times(pair, pair_bytes))
        places = [4 * (half * OUTPUTS + LANES * r) for r in range(REGISTERS)]
        return [self.builder.load(self._at(row, place, kind), align=4) for place in places]

    def _begin_to_read(self, ahead, pair):
        first = self.builder.add(ahead, self._times(pair, LINE * self.lines))
        for line in range(self.lines):
            begin_to_read(self.builder, self.builder.add(first, _LONG(LINE * line)))

    def _at(self, address, offset, kind):
        return self.builder.inttoptr(self.builder.add(address, _LONG(offset)), kind.as_pointer())

    def _times(self, number, factor):
        return self.builder.mul(number, _LONG(factor))
