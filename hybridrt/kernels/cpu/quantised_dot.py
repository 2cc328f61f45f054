"""Products of weights of 8 or 4 bits with some vectors, written out for LLVM.

A weight of so few bits is a bfloat16 without rounding, so that a register of them is multiplied by
pairs, as `packed_dot` does it with those of bfloat16. They lie as `QuantisedWeight` has them.
Each sum goes on from input to input, however many vectors there are. Where the processor has AMX
products are added in its order (see `one_vector`), so that more vectors can be left to it.
"""

from collections.abc import Callable, Iterator
from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic

from hybridrt.kernels.blocked_matrices import BLOCK
from hybridrt.kernels.cpu.one_vector import STEP
from hybridrt.kernels.cpu.packed_dot import LINE, REGISTERS
from hybridrt.kernels.cpu.packed_dot import MOST_VECTORS as MOST_IN_ORDER
from hybridrt.kernels.cpu.pairs import BY_PAIRS, add_product, as_singles
from hybridrt.kernels.cpu.tile_registers import HAS_TILES
from hybridrt.kernels.cpu.vectors import (
    INT32,
    LANES,
    MULTIPLIES_PAIRS,
    all_lanes,
    begin_to_read,
    call,
    in_each_lane,
)

MOST_VECTORS = 2 if HAS_TILES else MOST_IN_ORDER
"""At once; with even and odd inputs apart twice as many registers are needed."""

MOST_BY_PAIRS = MOST_IN_ORDER if BY_PAIRS else 3 if MULTIPLIES_PAIRS else 0
"""Vectors that are multiplied by pairs: for a few it takes less time to make pairs of bits than
singles, even where products of pairs take longer. The sums are the same."""

TOO_MUCH = 128 + 8
"""What a weight of 4 bits is more than it should be: it is stored plus 8, and widened plus 128."""

AHEAD = 2048 if HAS_TILES else 8192
"""Bytes by which reading weights from memory is ahead of multiplying them, as measured on both."""

WIDEN_AHEAD = 8192
"""The same where a whole group is widened before it is multiplied."""

SCALES_AHEAD = 1024

_ABOVE, _NIBBLES = 0x4300_4300, 0x000F_000F  # the bfloat16 128 + n ends with the bits of n
_HALF, _LONG = ir.IntType(16), ir.IntType(64)
_FLOATS, _PAIRS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(INT32, LANES)


@no_type_check
def make_group_dot(
    bits: int, most_by_pairs: int = MOST_BY_PAIRS, apart: bool = HAS_TILES
) -> Callable[..., Any]:
    """A function `(ahead, count, values, scales, groups, group, x, x_bytes, begins, begin_bytes,
    sums)`.

    All are addresses or numbers: of the values and scales of a block, of its groups and of inputs
    in one, of the first of 1 to `MOST_VECTORS` vectors, and of `float32[count, BLOCK]`, to which
    it adds; `begins`, a float32 for each group of each vector, is what its sums begin with. It
    begins to read what lies `ahead` bytes behind the values that it multiplies. With 16 bits
    values have been widened. Up to `most_by_pairs` vectors are multiplied by pairs.
    """

    @intrinsic
    def dot(
        context, ahead, count, values, scales, groups, group, x, x_bytes, begins, begin_bytes, sums
    ):
        def code(context, builder, signature, args):
            ahead, count, *of_weight, group = args[:6]
            for number in range(1, MOST_VECTORS + 1):
                with builder.if_then(builder.icmp_signed("==", count, _LONG(number))):
                    own = _Group(builder, bits, group, ahead, number <= most_by_pairs, apart)
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
            _Group(builder, bits, args[1], _LONG(WIDEN_AHEAD)).widen(args[0], args[2])
            return context.get_dummy_value()

        return types.none(*[types.int64] * 3), code

    return widen


@no_type_check
class _Group:
    """Writes the instructions for a group of a block's inputs."""

    def __init__(self, builder, bits, group, ahead, by_pairs=False, apart=False):
        self.builder, self.bits, self.group, self.by_pairs = builder, bits, group, by_pairs
        self.ahead, self.apart = ahead, apart
        self.pairs = 4 if bits == 4 else 1  # at a time, of what is loaded at once

    def multiply(self, count, values, scales, groups, x, x_bytes, begins, begin_bytes, sums):
        b, places = self.builder, [(t, r) for t in range(count) for r in range(REGISTERS)]
        found = {place: self._variable() for place in places}
        halves = {place: (self._variable(), self._variable()) for place in places * self.apart}
        given = [b.add(x, b.mul(x_bytes, _LONG(t))) for t in range(count)]
        starts = [b.add(begins, b.mul(begin_bytes, _LONG(t))) for t in range(count)]
        run = _LONG(2 * STEP) if self.apart else self.group
        with for_range(b, groups) as loop:
            for line in range(0, 2 * BLOCK, LINE):
                at = b.add(self._times(loop.index, 2 * BLOCK), _LONG(SCALES_AHEAD + line))
                begin_to_read(b, b.add(scales, at))
            for t, r in places:
                start = self._load(starts[t], self._times(loop.index, 4), ir.FloatType(), 4)
                b.store(in_each_lane(b, start), found[t, r])
            with for_range(b, b.udiv(self.group, run)) as part:
                before = b.add(b.mul(loop.index, self.group), b.mul(part.index, run))
                own = b.add(values, self._times(before, BLOCK // 8 * self.bits))
                for even, odd in halves.values():
                    b.store(all_lanes(0.0), even)
                    b.store(all_lanes(0.0), odd)
                with for_range(b, b.udiv(run, _LONG(2 * self.pairs))) as step:
                    at = b.add(self._times(before, 2), self._times(step.index, 4 * self.pairs))
                    vectors = [b.add(vector, at) for vector in given]
                    self._step(own, step.index, vectors, halves or found)
                for place, (even, odd) in halves.items():
                    both = b.fadd(b.load(even), b.load(odd))
                    b.store(b.fadd(b.load(found[place]), both), found[place])
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
            for k, r, words in self._words(values, step.index):
                pair = b.add(self._times(step.index, self.pairs), _LONG(k))
                to = b.add(block, b.add(self._times(pair, 4 * BLOCK), _LONG(4 * LANES * r)))
                b.store(self._as_pairs(words), b.inttoptr(to, _PAIRS.as_pointer()), align=4)

    def _step(self, values, step, vectors, sums):
        """Adds products of what is loaded at once; with halves, of even and odd inputs apart."""
        b = self.builder
        for k, r, words in self._words(values, step):
            for t, vector in enumerate(vectors):
                pair = in_each_lane(b, self._load(vector, _LONG(4 * k), INT32, 2))
                if self.by_pairs and not self.apart:
                    total = add_product(b, b.load(sums[t, r]), self._as_pairs(words), pair, True)
                    b.store(total, sums[t, r])
                    continue
                into = sums[t, r] if self.apart else 2 * [sums[t, r]]
                parts = zip(self._as_singles(words), as_singles(b, pair), into, strict=True)
                for weights, inputs, total in reversed([*parts]):  # as pairs are added
                    args = [weights, inputs, b.load(total)]
                    b.store(call(b, f"llvm.fma.v{LANES}f32", _FLOATS, args), total)

    def _words(self, values, step) -> Iterator[tuple[int, int, Any]]:
        """Which of a step's pairs, which outputs, and in the lower bits such a pair of each."""
        b = self.builder
        if self.bits != 16:  # those come from memory
            size = 2 * self.pairs * BLOCK * self.bits // 8
            for line in range(0, size, LINE):
                place = b.add(b.add(values, self.ahead), self._times(step, size))
                begin_to_read(b, b.add(place, _LONG(line)))
        word_bits = 16 if self.bits == 8 else 32
        of_step, kind = BLOCK * word_bits // 8, ir.VectorType(ir.IntType(word_bits), LANES)
        places = [self._times(step, of_step) for _ in range(REGISTERS)]
        places = [b.add(at, _LONG(of_step // REGISTERS * r)) for r, at in enumerate(places)]
        loaded = [self._load(values, at, kind, 1) for at in places]
        for k in range(self.pairs):
            for r, words in enumerate(loaded):
                words = b.zext(words, _PAIRS) if self.bits == 8 else words
                yield k, r, b.lshr(words, all_lanes(4 * k, _PAIRS)) if k else words

    def _as_pairs(self, words):
        """Pairs of bfloat16."""
        b = self.builder
        if self.bits == 16:
            return words
        if self.bits == 4:
            low = b.and_(words, all_lanes(_NIBBLES, _PAIRS))
            return b.or_(low, all_lanes(_ABOVE, _PAIRS))
        even, odd = (b.bitcast(half, _PAIRS) for half in self._as_singles(words))
        return b.or_(b.lshr(even, all_lanes(16, _PAIRS)), odd)

    def _as_singles(self, words):
        """The first of each pair and the second, as float32.

        n in the lower bits of a float32 2^23 makes it 2^23 + n, and so on for smaller powers.
        """
        b = self.builder
        if self.bits == 16:
            return as_singles(b, words)
        if self.bits == 4:
            even = self._in_float(words, 0xF, 2**23, 0)
            odd = self._in_float(words, 0xF << 16, 2**7, 0)
            return b.fsub(even, all_lanes(2.0**23 - 128)), odd
        # Eight bits of n are those of n + 128, the highest one turned.
        even = self._in_float(words, 0xFF, 2**23, 0x80)
        odd = self._in_float(words, 0xFF << 8, 2**15, 0x80 << 8)
        return b.fsub(even, all_lanes(2.0**23 + 128)), b.fsub(odd, all_lanes(2.0**15 + 128))

    def _in_float(self, words, mask, power, turned):
        b = self.builder
        bits = int(np.float32(power).view(np.int32)) | turned
        kept = b.and_(words, all_lanes(mask, _PAIRS))
        return b.bitcast(b.xor(kept, all_lanes(bits, _PAIRS)), _FLOATS)

    def _variable(self):
        return alloca_once_value(self.builder, all_lanes(0.0))

    def _load(self, base, offset, kind, align):
        address = self.builder.add(base, offset)
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def _times(self, number, factor):
        return self.builder.mul(number, _LONG(factor))
