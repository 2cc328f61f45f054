"""Products of weights of 8 or 4 bits with some vectors, written out for LLVM.

A weight of so few bits is a bfloat16 without rounding, so that a register of them is multiplied by
pairs, as `packed_dot` does it with those of bfloat16. They lie as `QuantisedWeight` has them.
Each sum goes on from input to input, however many vectors there are.
"""

from collections.abc import Callable, Iterator
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic

from hybridrt.kernels.blocked_matrices import BLOCK
from hybridrt.kernels.cpu.packed_dot import LINE, MOST_VECTORS, REGISTERS
from hybridrt.kernels.cpu.pairs import MULTIPLIES_PAIRS, add_product
from hybridrt.kernels.cpu.vectors import INT32, LANES, all_lanes, begin_to_read, call, in_each_lane

TOO_MUCH = 128 + 8
"""What a weight of 4 bits is more than it should be: it is stored plus 8, and widened plus 128."""

AHEAD = 8192
"""Bytes by which reading weights from memory is ahead of multiplying them."""

_ABOVE, _NIBBLES = 0x4300_4300, 0x000F_000F  # the bfloat16 128 + n ends with the bits of n
_BYTE, _HALF, _LONG = (ir.IntType(bits) for bits in (8, 16, 64))
_FLOATS, _PAIRS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(INT32, LANES)
_HALVES = ir.VectorType(_HALF, 2 * LANES)


@no_type_check
def make_group_dot(bits: int, by_pairs: bool = MULTIPLIES_PAIRS) -> Callable[..., Any]:
    """A function `(ahead, count, values, scales, groups, group, x, x_bytes, begins, begin_bytes,
    sums)`.

    All are addresses or numbers: of the values and scales of a block, of its groups and of inputs
    in one, of the first of 1 to `MOST_VECTORS` vectors, and of `float32[count, BLOCK]`, to which
    it adds; `begins`, a float32 for each group of each vector, is what its sums begin with. It
    begins to read what lies `ahead` bytes behind the values that it multiplies. With 16 bits
    values have been widened.
    """

    @intrinsic
    def dot(
        context, ahead, count, values, scales, groups, group, x, x_bytes, begins, begin_bytes, sums
    ):
        def code(context, builder, signature, args):
            ahead, count, *of_weight, group = args[:6]
            for number in range(1, MOST_VECTORS + 1):
                with builder.if_then(builder.icmp_signed("==", count, _LONG(number))):
                    own = _Group(builder, bits, group, ahead, by_pairs)
                    own.multiply(number, *of_weight, *args[6:])
            return context.get_dummy_value()

        return types.none(*[types.int64] * 11), code

    return dot


@no_type_check
def make_group_widen(bits: int) -> Callable[..., Any]:
    """A function `(values, inputs, block)` for compiled code.

    It writes whole groups of so many `inputs` as `bfloat16[inputs / 2, BLOCK, 2]`.
    """

    @intrinsic
    def widen(typing_context, values, inputs, block):
        def code(context, builder, signature, args):
            _Group(builder, bits, args[1], _LONG(AHEAD)).widen(args[0], args[2])
            return context.get_dummy_value()

        return types.none(*[types.int64] * 3), code

    return widen


@no_type_check
class _Group:
    """Writes the instructions for a group of a block's inputs."""

    def __init__(self, builder, bits, group, ahead, by_pairs=MULTIPLIES_PAIRS):
        self.builder, self.bits, self.group, self.by_pairs = builder, bits, group, by_pairs
        self.ahead = ahead
        self.pairs = 4 if bits == 4 else 1  # at a time, of what is loaded at once

    def multiply(self, count, values, scales, groups, x, x_bytes, begins, begin_bytes, sums):
        b, places = self.builder, [(t, r) for t in range(count) for r in range(REGISTERS)]
        found = {place: alloca_once_value(b, all_lanes(0.0)) for place in places}
        given = [b.add(x, b.mul(x_bytes, _LONG(t))) for t in range(count)]
        starts = [b.add(begins, b.mul(begin_bytes, _LONG(t))) for t in range(count)]
        with for_range(b, groups) as loop:
            for t, r in places:
                start = self._load(starts[t], self._times(loop.index, 4), ir.FloatType(), 4)
                b.store(in_each_lane(b, start), found[t, r])
            inputs = b.mul(loop.index, self.group)  # before this group
            own = b.add(values, self._times(inputs, BLOCK // 8 * self.bits))
            first = self._times(inputs, 2)
            with for_range(b, b.udiv(self.group, _LONG(2 * self.pairs))) as step:
                for r, k, weights in self._weights(own, step.index):
                    at = b.add(first, self._times(step.index, 4 * self.pairs))
                    for t, vector in enumerate(given):
                        pair = self._load(vector, b.add(at, _LONG(4 * k)), INT32, 2)
                        total = b.load(found[t, r])
                        pair = in_each_lane(b, pair)
                        b.store(add_product(b, total, weights, pair, self.by_pairs), found[t, r])
            for t, r in places:
                at = b.add(self._times(loop.index, 2 * BLOCK), _LONG(2 * LANES * r))
                scale = b.zext(self._load(scales, at, ir.VectorType(_HALF, LANES), 2), _PAIRS)
                scale = b.bitcast(b.shl(scale, all_lanes(16, _PAIRS)), _FLOATS)
                to = b.add(sums, _LONG(4 * (t * BLOCK + r * LANES)))
                args = [b.load(found[t, r]), scale, self._load(to, _LONG(0), _FLOATS, 4)]
                total = call(b, f"llvm.fma.v{LANES}f32", _FLOATS, args)
                b.store(total, b.inttoptr(to, _FLOATS.as_pointer()), align=4)

    def widen(self, values, block):
        b = self.builder
        with for_range(b, b.udiv(self.group, _LONG(2 * self.pairs))) as step:
            for r, k, weights in self._weights(values, step.index):
                pair = b.add(self._times(step.index, self.pairs), _LONG(k))
                to = b.add(block, b.add(self._times(pair, 4 * BLOCK), _LONG(4 * LANES * r)))
                b.store(weights, b.inttoptr(to, _PAIRS.as_pointer()), align=4)

    def _weights(self, values, step) -> Iterator[tuple[int, int, Any]]:
        """Pairs of bfloat16 for `LANES` outputs: which outputs, and which of a step's pairs."""
        b = self.builder
        if self.bits != 16:  # those come from memory
            size = 2 * self.pairs * BLOCK * self.bits // 8
            for line in range(0, size, LINE):
                place = b.add(b.add(values, self.ahead), self._times(step, size))
                begin_to_read(b, b.add(place, _LONG(line)))
        for r in range(REGISTERS):
            if self.bits == 8:
                at = b.add(self._times(step, 2 * BLOCK), _LONG(2 * LANES * r))
                yield (
                    r,
                    0,
                    self._widened(self._load(values, at, ir.VectorType(_BYTE, 2 * LANES), 1)),
                )
                continue
            at = b.add(self._times(step, 4 * BLOCK), _LONG(4 * LANES * r))
            words = self._load(values, at, _PAIRS, 4)
            if self.bits == 16:
                yield r, 0, words
                continue
            for k in range(self.pairs):
                shifted = b.lshr(words, all_lanes(4 * k, _PAIRS))
                low = b.and_(shifted, all_lanes(_NIBBLES, _PAIRS))
                yield r, k, b.or_(low, all_lanes(_ABOVE, _PAIRS))

    def _widened(self, octets):
        """The upper halves of 32 numbers as float32, which are those as bfloat16."""
        b, halves = self.builder, []
        for start in (0, LANES):
            lanes = ir.Constant(_PAIRS, list(range(start, start + LANES)))
            numbers = b.sext(b.shuffle_vector(octets, octets, lanes), _PAIRS)
            halves.append(b.bitcast(b.sitofp(numbers, _FLOATS), _HALVES))
        upper = ir.Constant(ir.VectorType(INT32, 2 * LANES), list(range(1, 4 * LANES, 2)))
        return b.bitcast(b.shuffle_vector(*halves, upper), _PAIRS)

    def _load(self, base, offset, kind, align):
        address = self.builder.add(base, offset)
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def _times(self, number, factor):
        return self.builder.mul(number, _LONG(factor))
