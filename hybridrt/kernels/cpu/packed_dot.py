"""Products of a bfloat16 matrix, as oneDNN packs it, with some vectors, written out for LLVM.

oneDNN's blocks of `OUTPUTS` outputs have pairs of neighbouring inputs side by side:
`[inputs / 2, OUTPUTS, 2]`. So a register holds such a pair for each of 16 outputs. Where that is
faster, one instruction (AVX512-BF16) multiplies them with a vector's pair, adds both, and adds to
the sums; elsewhere both halves are widened, and multiplied one after the other. Each sum goes on
from input to input, however many vectors there are.
"""

from collections.abc import Callable, Iterable
from contextlib import contextmanager, nullcontext
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once, alloca_once_value, for_range
from numba.extending import intrinsic

from hybridrt.kernels.blocked_matrices import BLOCK as OUTPUTS
from hybridrt.kernels.cpu.pairs import (
    BY_PAIRS,
    UPPER,
    add_product,
    as_singles,
    first_of,
    second_of,
    unknown_upper,
)
from hybridrt.kernels.cpu.vectors import (
    HAS_REGISTERS,
    INT32,
    IS_ZEN_4,
    LANES,
    ONCE,
    READS_PAGES,
    all_lanes,
    begin_to_read,
    begin_to_read_all,
    call,
    first_lanes,
    in_each_lane,
    unknown,
)

REGISTERS = OUTPUTS // LANES
MOST_VECTORS = 6
"""At once: their sums, a pair of each output and of one vector fill the 32 registers."""

MOST_IN_HALVES = 2 * MOST_VECTORS if HAS_REGISTERS and not BY_PAIRS else MOST_VECTORS
"""The same of half of a block's outputs at a time. What is widened serves more vectors so; where
pairs are multiplied, nothing is widened."""

NEARNESS = 2 if IS_ZEN_4 else ONCE
"""How near weights are brought. On Zen 4 into the second cache: asked for into the nearest alone
they came later, as measured, above all where several vectors use them."""

IN_PARTS = 2
"""The same where parts of the outputs take turns at AVX2's registers, as measured on Zen 1: what
they use and what comes next fill the nearest cache."""

WIDENED = 64
"""Pairs of each vector that are widened at once: what they become stays in the nearest cache."""

_WIDE_BYTES = 2 * 4 * WIDENED  # of a vector

_LONG = ir.IntType(64)
_FLOAT = ir.FloatType()
_FLOATS, _PAIRS = ir.VectorType(_FLOAT, LANES), ir.VectorType(INT32, LANES)


def registers_at_once(count: int) -> int:
    """Of a block's outputs, whose sums with so many vectors stay in AVX2's registers.

    Those are 16, with half a vector each: for sums, for weights and for an input. What is left over
    takes turns.
    """
    return {1: REGISTERS, 2: 2}.get(count, 1)


@no_type_check
def make_packed_dot(
    counts: Iterable[int],
    lines: int,
    by_pairs: bool = BY_PAIRS,
    widened: bool = False,
    in_parts: bool = not HAS_REGISTERS,
) -> Callable[..., Any]:
    """A function `(count, room, block, vectors, vector_bytes, pairs, sums, ahead, step)`, compiled.

    All are addresses or numbers: one of `counts`, what `room_for_inputs` gives, of a block, of the
    first of `count` vectors, `vector_bytes` apart, of so many pairs, and of
    `float32[count, OUTPUTS]`, to which it adds. With every pair it begins to read the next `step`
    bytes of what lies from `ahead` on, at so many places: as many as there are `lines` in them at
    most. A block that is `widened` is what `widen_block` writes. Outputs are taken `in_parts` where
    registers don't hold all sums of AVX2, and in halves for more than `MOST_VECTORS`.
    """

    @intrinsic
    def dot(context, count, room, block, vectors, vector_bytes, pairs, sums, ahead, step):
        def code(context, builder, signature, args):
            for number in counts:
                with builder.if_then(builder.icmp_signed("==", args[0], _LONG(number))):
                    _Dot(builder, number, lines, widened, in_parts).write(by_pairs, *args[1:])
            return context.get_dummy_value()

        return types.none(*[types.int64] * 9), code

    return dot


@intrinsic
@no_type_check
def room_for_inputs(typing_context):
    """The address of room that is there until the function ends which asks for it."""

    def code(context, builder, signature, args):
        room = ir.ArrayType(_FLOATS, MOST_IN_HALVES * _WIDE_BYTES // (4 * LANES))
        return builder.ptrtoint(alloca_once(builder, room), _LONG)

    return types.int64(), code


@intrinsic
@no_type_check
def widen_block(typing_context, block, pairs, room):
    """Writes so many of a block's pairs as `float32[pairs, 2, OUTPUTS]`. Takes addresses."""

    def code(context, builder, signature, args):
        _Dot(builder).widen_block(*args)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), code


@no_type_check
class _Dot:
    """Writes the instructions of one."""

    def __init__(self, builder, count=0, lines=0, widened=False, in_parts=False):
        self.builder, self.lines, self.vectors = builder, lines, range(count)
        self.widened = widened
        at_once = REGISTERS if count <= MOST_VECTORS else REGISTERS // 2
        at_once = registers_at_once(count) if in_parts else at_once
        self.parts = [range(r, r + at_once) for r in range(0, REGISTERS, at_once)]
        self.nearness = IN_PARTS if in_parts and len(self.parts) > 1 else NEARNESS
        places = [(t, r) for t in self.vectors for r in range(REGISTERS)]
        self.totals = {place: alloca_once_value(builder, all_lanes(0.0)) for place in places}

    def write(self, by_pairs, room, block, vectors, vector_bytes, pairs, sums, ahead, step):
        b = self.builder
        given = [b.add(vectors, b.mul(vector_bytes, _LONG(t))) for t in self.vectors]
        if by_pairs:
            with self._in_registers(sums, range(REGISTERS)):
                self._add_pairs(block, given, pairs, ahead, step)
        else:
            self._add_halves(room, block, given, pairs, ahead, step, sums)

    @contextmanager
    def _in_registers(self, sums, part):
        """Brings sums of these registers of outputs into them, and back at the end."""
        b = self.builder
        totals = {
            self._at(sums, 4 * (t * OUTPUTS + r * LANES), _FLOATS): total
            for (t, r), total in self.totals.items()
            if r in part
        }
        for place, total in totals.items():
            b.store(b.load(place, align=4), total)
        yield
        for place, total in totals.items():
            b.store(b.load(total), place, align=4)

    def widen_block(self, block, pairs, room):
        b, begun = self.builder, self._begin_halves(block)
        with for_range(b, pairs) as loop:
            to = b.add(room, self._times(loop.index, 2 * 4 * OUTPUTS))
            for half, weights in self._halves(begun, loop.index, range(REGISTERS)):
                for r, weight in enumerate(weights):
                    at = self._at(to, 4 * (half * OUTPUTS + LANES * r), _FLOATS)
                    b.store(weight, at, align=4)

    def _add_pairs(self, block, vectors, pairs, ahead, step):
        b = self.builder
        with for_range(b, pairs) as loop:
            self._begin_to_read(ahead, loop.index, self.lines, step)
            weights = self._weights(block, loop.index, range(REGISTERS), _PAIRS, 4 * OUTPUTS, 0)
            for t, vector in enumerate(vectors):
                pair = self._at(b.add(vector, self._times(loop.index, 4)), 0, INT32)
                pair = in_each_lane(b, b.load(pair, align=2))
                for r, weight in enumerate(weights):
                    total = self.totals[t, r]
                    b.store(add_product(b, b.load(total), weight, pair, True), total)

    def _add_halves(self, room, block, vectors, pairs, ahead, step, sums):
        """Some pairs at a time, whose inputs are widened beforehand: all outputs use them."""
        b, most, alone = self.builder, _LONG(WIDENED), len(self.parts) == 1
        turns = b.udiv(b.add(pairs, _LONG(WIDENED - 1)), most)
        throughout = self._in_registers(sums, self.parts[0]) if alone else nullcontext()
        with throughout, for_range(b, turns) as turn:
            first = b.mul(turn.index, most)
            left = b.sub(pairs, first)
            some = b.select(b.icmp_signed("<", left, most), left, most)
            for t, vector in enumerate(vectors):
                own = b.add(room, _LONG(t * _WIDE_BYTES))
                self._widen(b.add(vector, self._times(first, 4)), some, own)
            lines, of_part = self.lines // len(self.parts), b.udiv(step, _LONG(len(self.parts)))
            then = b.add(ahead, b.mul(first, step))
            for part in self.parts:
                with nullcontext() if alone else self._in_registers(sums, part):
                    self._add_part(part, room, block, first, some, then, lines, of_part)
                # In order: with every fourth line first, nothing was there when it was needed.
                then = b.add(then, b.mul(some, of_part))

    def _add_part(self, part, room, block, first, some, ahead, lines, step):
        """Adds to the sums of one part of the outputs."""
        b, begun = self.builder, self._begin_halves(block)
        with for_range(b, some) as loop:
            pair = b.add(first, loop.index)
            self._begin_to_read(ahead, loop.index, lines, step)
            of_pair = b.add(room, self._times(loop.index, 4))
            for half, weights in self._halves(begun, pair, part):
                for t in self.vectors:
                    at = self._at(of_pair, t * _WIDE_BYTES + half * 4 * WIDENED, _FLOAT)
                    x = in_each_lane(b, b.load(at))
                    for r, weight in zip(part, weights, strict=True):
                        total = self.totals[t, r]
                        args = [weight, x, b.load(total)]
                        b.store(call(b, f"llvm.fma.v{LANES}f32", _FLOATS, args), total)

    def _widen(self, pairs, count, room):
        """Writes the first of each pair, and behind `WIDENED` of those the second."""
        b = self.builder
        whole = b.udiv(count, _LONG(LANES))
        with for_range(b, whole) as loop:
            read = self._at(b.add(pairs, self._times(loop.index, 4 * LANES)), 0, _PAIRS)
            self._write_singles(b.load(read, align=2), loop.index, room)
        rest = b.sub(count, self._times(whole, LANES))
        with b.if_then(b.icmp_signed(">", rest, _LONG(0)), likely=False):
            # Not all are read so: where lanes are masked, AVX2 reads more slowly.
            read = self._at(b.add(pairs, self._times(whole, 4 * LANES)), 0, _PAIRS)
            args = [read, ir.Constant(INT32, 2), first_lanes(b, rest), ir.Constant(_PAIRS, None)]
            words = call(b, f"llvm.masked.load.v{LANES}i32.p0", _PAIRS, args)
            self._write_singles(words, whole, room)

    def _write_singles(self, words, turn, room):
        at = self._times(turn, 4 * LANES)
        for half, singles in enumerate(as_singles(self.builder, words)):
            place = self._at(self.builder.add(room, at), half * 4 * WIDENED, _FLOATS)
            self.builder.store(singles, place)

    def _begin_halves(self, block):
        """What `_halves` takes, made before the loop in which it stands: LLVM leaves it there."""
        if HAS_REGISTERS:
            return block, block, UPPER
        # Read once for both halves, weights would be put down in between for lack of registers.
        return unknown(self.builder, block), block, unknown_upper(self.builder)

    def _halves(self, begun, pair, part):
        """0 and the first of a pair's weights for a part of the outputs; 1 and the second.

        In float32. The second come first, as an instruction for pairs adds them.
        """
        first, second, upper = begun
        if self.widened:
            size = 2 * 4 * OUTPUTS
            for half in reversed(range(2)):
                yield half, self._weights(first, pair, part, _FLOATS, size, half)
            return
        weights = self._weights(second, pair, part, _PAIRS, 4 * OUTPUTS, 0)
        yield 1, [second_of(self.builder, weight, upper) for weight in weights]
        weights = self._weights(first, pair, part, _PAIRS, 4 * OUTPUTS, 0)
        yield 0, [first_of(self.builder, weight) for weight in weights]

    def _weights(self, block, pair, part, kind, pair_bytes, half):
        row = self.builder.add(block, self._times(pair, pair_bytes))
        places = [4 * (half * OUTPUTS + LANES * r) for r in part]
        return [self.builder.load(self._at(row, place, kind), align=4) for place in places]

    def _begin_to_read(self, ahead, turn, lines, step):
        place = self.builder.add(ahead, self.builder.mul(turn, step))
        if READS_PAGES and not self.widened:
            begin_to_read_all(self.builder, place, lines, self.nearness)
            return
        # Where many vectors use what is widened, calculation decides: no more of it for addresses.
        to_next = self.builder.udiv(step, _LONG(lines))
        for _ in range(lines):
            begin_to_read(self.builder, place, self.nearness)
            place = self.builder.add(place, to_next)

    def _at(self, address, offset, kind):
        return self.builder.inttoptr(self.builder.add(address, _LONG(offset)), kind.as_pointer())

    def _times(self, number, factor):
        return self.builder.mul(number, _LONG(factor))
