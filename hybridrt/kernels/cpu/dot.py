"""Dot products of quantised weights with some vectors, written out for LLVM.

numba's own loops would widen a weight once for every vector. Here it is widened once, in a
register, and multiplied with all of them; and what is loaded of the vectors, with several rows
of weights. LLVM cuts vectors of 16 to what the processor has.

Vectors come packed: `[inputs / 16, count, 16]`, float32. Weights come as they are stored, see
`hybridrt.kernels.quantised_linear.QuantisedWeight`: in the order in which they are read.
"""

from collections.abc import Callable
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
ROWS = 4
"""Of weights at once: those that are stored together."""
VECTORS = (1, 2, 4)
"""At once: there is a register for each sum."""

_BYTE, _HALF, _WORD, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_SINGLE = ir.FloatType()
_BYTES, _WORDS, _SINGLES = (ir.VectorType(t, LANES) for t in (_BYTE, _WORD, _SINGLE))


@no_type_check
def make_dot(bits: int, group: int, count: int) -> Callable[..., Any]:
    """A function `(weights, scales, vectors, sums, groups)` for compiled code.

    `weights` and `scales` are the addresses of the first of `ROWS` rows, `vectors` that
    of packed ones, and `sums` that of `float32[ROWS, count]`, which it writes.
    """

    @intrinsic
    def dot(typing_context, weights, scales, vectors, sums, groups):
        def code(context, builder, signature, args):
            _Dot(builder, bits, group, count, groups=args[-1]).write(*args[:-1])
            return context.get_dummy_value()

        return types.none(*[types.int64] * 5), code

    return dot


@no_type_check
class _Dot:
    """Writes the instructions of one."""

    def __init__(self, builder, bits, group, count, groups):
        self.builder, self.bits, self.group, self.groups = builder, bits, group, groups
        self.rows, self.count = range(ROWS), range(count)
        fma = ir.FunctionType(_SINGLES, [_SINGLES] * 3)
        self.fma = cgutils.get_or_insert_function(builder.module, fma, "llvm.fma.v16f32")

    def write(self, weights, scales, vectors, sums):
        b, zero = self.builder, ir.Constant(_SINGLES, [0.0] * LANES)
        places = [(row, m) for row in self.rows for m in self.count]
        totals = {place: cgutils.alloca_once_value(b, zero) for place in places}
        for total in totals.values():
            b.store(zero, total)
        group_bytes = self.group * self.bits // 8
        with cgutils.for_range(b, self.groups) as loop:
            given = self._add(vectors, self._times(loop.index, 4 * self.group * len(self.count)))
            own = self._add(weights, self._times(loop.index, ROWS * group_bytes))
            scale = self._scales(self._add(scales, self._times(loop.index, ROWS * 2)))
            places = (self._add(own, ir.Constant(_LONG, row * group_bytes)) for row in self.rows)
            rows = [(place, self._lane(scale, row)) for row, place in enumerate(places)]
            self._add_group(totals, rows, given)
        self._store_sums([b.load(total) for total in totals.values()], sums)

    def _store_sums(self, totals, place):
        """Adds up the lanes of each of 4, 8 or 16 vectors, and stores the sums in their order.

        Two vectors become one, in which each has half of the lanes; at last all are in one.
        """
        count, width = len(totals), LANES
        while len(totals) > 1:
            pairs = zip(totals[::2], totals[1::2], strict=True)
            width //= 2
            totals = [self._add_halves(one, other, width) for one, other in pairs]
        (found,) = totals
        while width > 1:
            width //= 2
            found = self._add_halves(found, found, width)
        for number in range(count):
            lane = ir.Constant(_WORD, number)
            to = self._add(place, ir.Constant(_LONG, 4 * number))
            single = self.builder.extract_element(found, lane)
            self.builder.store(single, self.builder.inttoptr(to, _SINGLE.as_pointer()))

    def _add_halves(self, one, other, width):
        """The first half of every `2 width` lanes plus the second: of one, then of the other."""
        lanes = [lane for lane in range(2 * LANES) if lane % (2 * width) < width]
        first, second = (
            self.builder.shuffle_vector(
                one, other, ir.Constant(_WORDS, [lane + more for lane in lanes])
            )
            for more in (0, width)
        )
        return self.builder.fadd(first, second)

    def _add_group(self, totals, rows, vectors):
        """Adds the products of a group, multiplied by their scales.

        With one vector these are added up before, as that takes one multiplication with the scale
        for all of a row's weights; else each weight is multiplied once for all vectors.
        """
        b = self.builder
        if len(self.count) == 1:
            sums = (
                self._sums_of_fours(rows, vectors) if self.bits == 4 else self._sums(rows, vectors)
            )
            for (_, scale), found, total in zip(rows, sums, totals.values(), strict=True):
                b.store(self._multiply_add(found, scale, b.load(total)), total)
            return
        widened = zip(*(self._widened(own, scale) for own, scale in rows), strict=True)
        sums = {place: b.load(total) for place, total in totals.items()}
        for block, values in enumerate(widened):
            for m in self.count:
                vector = self._vector(vectors, block * len(self.count) + m)
                for row, value in enumerate(values):
                    sums[row, m] = self._multiply_add(value, vector, sums[row, m])
        for place, found in sums.items():
            b.store(found, totals[place])

    def _sums(self, rows, vectors):
        """Each row's products with one vector, without the scales."""
        sums = [None for _ in rows]
        for block, values in enumerate(zip(*(self._widened(own) for own, _ in rows), strict=True)):
            vector = self._vector(vectors, block)
            sums = [self._multiply_add(v, vector, s) for v, s in zip(values, sums, strict=True)]
        return sums

    def _sums_of_fours(self, rows, vectors):
        """The same in fewer steps. A byte is `low + 16 high`, either of them 8 too much:

        `(low - 8) x + (high - 8) y = byte x + high (y - 16 x) - 8 (x + y)`.
        """
        b = self.builder
        eight, sixteen = (ir.Constant(_SINGLES, [-number] * LANES) for number in (8.0, 16.0))
        sums = [None for _ in rows]
        for block in range(self.group // (2 * LANES)):
            x, y = self._vector(vectors, 2 * block), self._vector(vectors, 2 * block + 1)
            start, rest = b.fmul(b.fadd(x, y), eight), self._multiply_add(x, sixteen, y)
            for row, (weights, _) in enumerate(rows):
                both = b.zext(self._load(weights, LANES * block, _BYTES, 1), _WORDS)
                high = b.lshr(both, ir.Constant(_WORDS, [4] * LANES))
                before = start if sums[row] is None else b.fadd(sums[row], start)
                found = self._multiply_add(b.sitofp(both, _SINGLES), x, before)
                sums[row] = self._multiply_add(b.sitofp(high, _SINGLES), rest, found)
        return sums

    def _vector(self, vectors, number):
        return self._load(vectors, 4 * LANES * number, _SINGLES, 4)

    def _widened(self, weights, scale=None):
        """A group's weights as float32, 16 at a time, multiplied by the scale if there is one."""
        b = self.builder
        for block in range(self.group * self.bits // (8 * LANES)):
            raw = self._load(weights, LANES * block, _BYTES, 1)
            parts = [b.sext(raw, _WORDS)]
            if self.bits == 4:  # what is stored is 8 more
                both, eight = b.zext(raw, _WORDS), ir.Constant(_WORDS, [8] * LANES)
                low = b.and_(both, ir.Constant(_WORDS, [15] * LANES))
                high = b.lshr(both, ir.Constant(_WORDS, [4] * LANES))
                parts = [b.sub(low, eight), b.sub(high, eight)]
            for part in parts:
                value = b.sitofp(part, _SINGLES)
                yield value if scale is None else b.fmul(value, scale)

    def _multiply_add(self, one, other, more):
        if more is None:
            return self.builder.fmul(one, other)
        return self.builder.call(self.fma, [one, other, more])

    def _scales(self, place):
        """Those of all rows, of bfloat16."""
        b, count = self.builder, len(self.rows)
        halves = self._load(place, 0, ir.VectorType(_HALF, count), 2)
        words = ir.VectorType(_WORD, count)
        bits = b.shl(b.zext(halves, words), ir.Constant(words, [16] * count))
        return b.bitcast(bits, ir.VectorType(_SINGLE, count))

    def _lane(self, vector, lane):
        """One of a vector's numbers in all lanes of another."""
        nothing = ir.Constant(vector.type, ir.Undefined)
        return self.builder.shuffle_vector(vector, nothing, ir.Constant(_WORDS, [lane] * LANES))

    def _load(self, base, offset, kind, align):
        place = self._add(base, ir.Constant(_LONG, offset))
        return self.builder.load(self.builder.inttoptr(place, kind.as_pointer()), align=align)

    def _add(self, one, other):
        return self.builder.add(one, other)

    def _times(self, number, factor):
        return self.builder.mul(number, ir.Constant(_LONG, factor))
