"""Dot products of quantised weights with some vectors, written out for LLVM.

numba's own loops would widen a weight once for every vector. Here it is widened once, in a
register, and multiplied with all of them; and what is loaded of the vectors, with several rows
of weights. LLVM cuts vectors of 16 to what the processor has.

Vectors come packed: `[inputs / 16, count, 16]`, float32.
"""

from collections.abc import Callable
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
ROWS = {1: 4, 2: 4, 4: 4, 8: 2}
"""How many rows of weights at once, by how many vectors: a register for each sum."""

_BYTE, _HALF, _WORD, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_SINGLE = ir.FloatType()
_BYTES, _WORDS, _SINGLES = (ir.VectorType(t, LANES) for t in (_BYTE, _WORD, _SINGLE))


@no_type_check
def make_dot(bits: int, group: int, count: int) -> Callable[..., Any]:
    """A function `(weights, scales, vectors, sums, groups)` for compiled code.

    `weights` and `scales` are the addresses of the first of `ROWS[count]` rows, `vectors` that
    of packed ones, and `sums` that of `float32[ROWS[count], count]`, which it writes.
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
        self.rows, self.count = range(ROWS[count]), range(count)
        fma = ir.FunctionType(_SINGLES, [_SINGLES] * 3)
        self.fma = cgutils.get_or_insert_function(builder.module, fma, "llvm.fma.v16f32")
        add = ir.FunctionType(_SINGLE, [_SINGLE, _SINGLES])
        name = "llvm.vector.reduce.fadd.v16f32"
        self.add_up = cgutils.get_or_insert_function(builder.module, add, name)

    def write(self, weights, scales, vectors, sums):
        b, zero = self.builder, ir.Constant(_SINGLES, [0.0] * LANES)
        places = [(row, m) for row in self.rows for m in self.count]
        totals = {place: cgutils.alloca_once_value(b, zero) for place in places}
        for total in totals.values():
            b.store(zero, total)
        group_bytes = self.group * self.bits // 8
        with cgutils.for_range(b, self.groups) as loop:
            of_row = self._times(self.groups, group_bytes), self._times(self.groups, 2)
            given = self._add(vectors, self._times(loop.index, 4 * self.group * len(self.count)))
            rows = []
            for row in self.rows:
                own = self._add(weights, self._times(loop.index, group_bytes))
                scale = self._add(scales, self._times(loop.index, 2))
                for stride in [of_row] * row:
                    own, scale = self._add(own, stride[0]), self._add(scale, stride[1])
                rows.append((own, self._scale(scale)))
            self._add_group(totals, rows, given)
        for number, total in enumerate(totals.values()):
            found = b.call(
                self.add_up, [ir.Constant(_SINGLE, 0.0), b.load(total)], fastmath=("reassoc",)
            )
            place = self._add(sums, ir.Constant(_LONG, 4 * number))
            b.store(found, b.inttoptr(place, _SINGLE.as_pointer()))

    def _add_group(self, totals, rows, vectors):
        """Adds the products of a group, multiplied by their scales.

        With one vector these are added up before, as that takes one multiplication with the scale
        for all of a row's weights; else each weight is multiplied once for all vectors.
        """
        b, at_last = self.builder, len(self.count) == 1
        sums = {place: None if at_last else b.load(total) for place, total in totals.items()}
        scales = [None if at_last else scale for _, scale in rows]
        widened = [self._widened(own, scale) for (own, _), scale in zip(rows, scales, strict=True)]
        for block, values in enumerate(zip(*widened, strict=True)):
            for m in self.count:
                place = 4 * LANES * (block * len(self.count) + m)
                vector = self._load(vectors, place, _SINGLES, 4)
                for row, value in enumerate(values):
                    sums[row, m] = self._multiply_add(value, vector, sums[row, m])
        for (row, m), found in sums.items():
            total = totals[row, m]
            b.store(
                self._multiply_add(found, rows[row][1], b.load(total)) if at_last else found, total
            )

    def _widened(self, weights, scale):
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

    def _scale(self, place):
        """A bfloat16, in all lanes."""
        b, nothing = self.builder, ir.Constant(_SINGLES, ir.Undefined)
        half = b.zext(self._load(place, 0, _HALF, 2), _WORD)
        scale = b.bitcast(b.shl(half, ir.Constant(_WORD, 16)), _SINGLE)
        one = b.insert_element(nothing, scale, ir.Constant(_WORD, 0))
        return b.shuffle_vector(one, nothing, ir.Constant(_WORDS, [0] * LANES))

    def _load(self, base, offset, kind, align):
        place = self._add(base, ir.Constant(_LONG, offset))
        return self.builder.load(self.builder.inttoptr(place, kind.as_pointer()), align=align)

    def _add(self, one, other):
        return self.builder.add(one, other)

    def _times(self, number, factor):
        return self.builder.mul(number, ir.Constant(_LONG, factor))
