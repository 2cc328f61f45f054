"""`pair_tile` of widened pairs where registers are few and half as large, as with AVX2."""

from typing import Any, no_type_check

from llvmlite import ir
from numba.core.cgutils import for_range

from hybridrt.kernels.cpu.pair_tile import NEARNESS, Widened
from hybridrt.kernels.cpu.pairs import first_of, second_of, unknown_upper
from hybridrt.kernels.cpu.vectors import (
    INT32,
    LANES,
    LINE,
    begin_to_read,
    call,
    first_lanes,
    in_each_lane,
    unknown,
)

_LONG, _HALF, _BIT = ir.IntType(64), ir.IntType(16), ir.IntType(1)
_WORDS = ir.VectorType(INT32, LANES)
_ORDER = ir.Constant(_WORDS, list(range(LANES)))


@no_type_check
class WidenedByHalves(Widened):
    """Takes a register, half of the lanes, at a time.

    Scores: products of one are added up in it. Of keys those of the first half of each pair are
    read again, from the nearest cache, as both halves at once leave too few registers. What is in
    them of queries is used by several tokens.

    Values: of more than two heads a line is summed in two turns, so that what was widened is used
    by all of them.
    """

    lanes = LANES // 2
    tokens = (8, 4, 4, 2)

    def __init__(self, builder, heads):
        super().__init__(builder, heads)
        self._upper = unknown_upper(builder)

    @property
    def whole_lines(self) -> tuple[int, ...]:
        return (1, 2) if len(self.heads) == 1 else (1,)

    def add_values(
        self, lines, numbers, weights, kept, values, places, count, ahead, leap, sums, sum_bytes
    ):  # fmt: skip
        if len(self.heads) > 2:
            read = values, places, count, ahead, leap
            self._add_in_turns(numbers, weights, kept, read, sums, sum_bytes)
        else:
            super().add_values(
                lines, numbers, weights, kept, values, places, count, ahead, leap, sums, sum_bytes
            )  # fmt: skip

    def _add_in_turns(self, numbers, weights, kept, read, sums, sum_bytes):
        b, (values, places, count, ahead, leap) = self.builder, read
        later = b.add(values, leap)
        for part in range(2):
            offsets = [4 * (LANES * half + self.lanes * part) for half in range(2)]
            given = offsets, self.lanes, kept, sums, sum_bytes
            with self._in_registers(*given) as totals, for_range(b, count) as loop:
                token = loop.index
                if part == 0:
                    begin_to_read(b, self._place(later, places, b.add(token, ahead)), NEARNESS)
                line = self._line(self._place(values, places, token), numbers)
                singles = [self._part(half, part) for half in self._singles(line)]
                for g in self.heads:
                    weight = in_each_lane(b, self._weight(weights, token, g), self.lanes)
                    for half, values_of_half in enumerate(singles):
                        self._add(totals[g, half], values_of_half, weight)

    def _add_line(self, totals, queries, keys, places, line, numbers, ahead, leap):
        b, tokens = self.builder, self._tokens_of(totals)
        at = b.mul(line, _LONG(LINE))
        later = b.add(b.add(keys, leap), at)
        for t in tokens:
            begin_to_read(b, self._place(later, places, b.add(ahead, _LONG(t))), NEARNESS)
        offset = b.mul(line, _LONG(self.query_line))
        for half in reversed(range(2)):
            here = unknown(b, at)  # LLVM doesn't know that it has read that line
            for part in range(2):
                of_part = b.add(offset, _LONG(4 * (LANES * half + self.lanes * part)))
                factors = [self._of_query(b.add(query, of_part)) for query in queries]
                for t in tokens:
                    key = b.add(self._place(keys, places, _LONG(t)), here)
                    singles = self._singles(self._line(key, numbers))
                    for g in self.heads:
                        self._add(totals[g, t], self._part(singles[half], part), factors[g])

    def _of_query(self, address):
        of = ir.VectorType(ir.FloatType(), self.lanes).as_pointer()
        return self.builder.load(self.builder.inttoptr(address, of), align=4)

    def _singles(self, line):
        b = self.builder
        return first_of(b, line), second_of(b, line, self._upper)

    def _part(self, vector, part):
        """One half of its lanes."""
        lanes = range(self.lanes * part, self.lanes * (part + 1))
        mask = ir.Constant(ir.VectorType(INT32, self.lanes), list(lanes))
        return self.builder.shuffle_vector(vector, vector, mask)

    def _line(self, address, numbers) -> Any:
        """Masks are of pairs, as AVX2 has none of less; the last number may be alone."""
        if numbers is None:
            return super()._line(address, None)
        b = self.builder
        whole, is_odd = b.lshr(numbers, _LONG(1)), b.trunc(numbers, _BIT)
        read = b.inttoptr(address, _WORDS.as_pointer())
        args = [read, INT32(2), first_lanes(b, whole), ir.Constant(_WORDS, None)]
        pairs = call(b, f"llvm.masked.load.v{LANES}i32.p0", _WORDS, args)
        last = b.add(address, b.mul(b.sub(numbers, _LONG(1)), _LONG(2)))
        last = b.zext(b.load(b.inttoptr(last, _HALF.as_pointer()), align=2), INT32)
        place = b.select(is_odd, b.trunc(whole, INT32), INT32(LANES))
        is_last = b.icmp_signed("==", _ORDER, in_each_lane(b, place))
        return b.select(is_last, in_each_lane(b, last), pairs)
