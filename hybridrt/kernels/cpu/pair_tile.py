"""Queries of some heads and a tile of tokens in bfloat16: scores, and sums of values, for LLVM.

A line of memory has 32 numbers, which are taken as 16 pairs. Some heads use what is read, and their
sums stay in registers. There are two forms:

- `widened`: the first of each pair and the second are float32 after one instruction each, where to
  widen them in their order takes two and half as much is read at once. Queries are float32 and
  stand as numbers do that were widened: the first of 16 pairs before the second.
- `multiplied`: one instruction multiplies pairs with pairs and adds both products. Queries and
  weights are bfloat16 in their order; of values, two tokens' numbers are put side by side.

Sums of values are in the order of widened numbers in both.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic

from hybridrt.kernels.cpu.attend_tile import TILE
from hybridrt.kernels.cpu.pair_order import PAIRS, add_lanes
from hybridrt.kernels.cpu.pairs import add_product, as_singles, next_to_each_other
from hybridrt.kernels.cpu.vectors import (
    HAS_REGISTERS,
    INT32,
    IS_ZEN,
    IS_ZEN_4,
    LANES,
    LINE,
    ONCE,
    begin_to_read,
    call,
    in_each_lane,
)

MOST_SUMMED = 6
"""Heads whose sums of a line of values, two vectors of each, stay in registers: with AVX2 half a
line at a time."""

NEARNESS = 2 if IS_ZEN_4 or not IS_ZEN else 3 if HAS_REGISTERS else ONCE
"""How near what comes is brought. On AMD's processors into the nearest cache: what lies in the
second has to come from there among all that is on its way from memory. On those with AVX-512 into
the second one too, as measured: the nearest gives up some of it before it is used. On Zen 4 into
the second alone, as measured, too."""

_LONG, _HALF = ir.IntType(64), ir.IntType(16)
_FLOAT = ir.FloatType()
_FLOATS, _WORDS = ir.VectorType(_FLOAT, LANES), ir.VectorType(INT32, LANES)
_HALVES = ir.VectorType(_HALF, PAIRS)
_ORDER = ir.Constant(_HALVES, list(range(PAIRS)))


@no_type_check
def make_score(form: type["Tile"]) -> Callable[..., Any]:
    """A function for compiled code that writes scores of tokens, a row of `TILE` for each head.

    Of `form.tokens[heads - 1]` tokens. Arguments are addresses or numbers: how many heads, queries,
    `q_bytes` apart, pages and `int64`, where in them each token's keys of `size` numbers begin, and
    the same of the keys' other part. It begins to read keys of the tokens `ahead` places later,
    `leap` bytes behind where those begin.
    """

    @intrinsic
    def score(
        context, heads, q, q_bytes, keys, places, size, more, more_places, more_size, ahead, leap,
        scores
    ):  # fmt: skip
        def code(context, builder, signature, args):
            heads, *rest = args
            for count in range(1, len(form.tokens) + 1):
                with builder.if_then(builder.icmp_signed("==", heads, _LONG(count))):
                    form(builder, count).score(*rest)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 12), code

    return score


@no_type_check
def make_add_values(form: type["Tile"]) -> Callable[..., Any]:
    """A function for compiled code: `sums = kept * sums + weights * values` of `count` tokens.

    Arguments are addresses or numbers: how many heads, rows of `TILE` weights, a float32 for each
    head, the first line of values where pages begin, `int64`, where in those a token is, and sums,
    `sum_bytes` from head to head. It takes two whole lines, or one with `numbers` in it; values of
    the tokens `ahead` places later, `leap` bytes behind where they begin, begin to be read.
    """

    @intrinsic
    def add_values(
        context, heads, numbers, weights, kept, values, places, count, ahead, leap, sums, sum_bytes
    ):
        def code(context, builder, signature, args):
            heads, numbers, *rest = args
            for count in range(1, MOST_SUMMED + 1):
                with builder.if_then(builder.icmp_signed("==", heads, _LONG(count))):
                    tile = form(builder, count)
                    for lines in tile.whole_lines:
                        is_so = builder.icmp_signed("==", numbers, _LONG(lines * PAIRS))
                        with builder.if_then(is_so):
                            tile.add_values(lines, None, *rest)
                    least = _LONG(tile.whole_lines[0] * PAIRS)
                    is_part = builder.icmp_signed("<", numbers, least)
                    with builder.if_then(is_part):
                        tile.add_values(1, numbers, *rest)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 11), code

    return add_values


@no_type_check
def _at(b, address, offset, kind):
    return b.inttoptr(b.add(address, _LONG(offset)), kind.as_pointer())


@no_type_check
class Tile(ABC):
    """Writes the instructions for some heads, in one form.

    Attributes:
        query_line: bytes of a query beside a line of keys.
        tokens: of which scores are taken at once, by the number of heads less one, and up to how
            many heads: as many as there are registers for their sums beside queries. With more
            some go to the stack, and scores take longer.
        lanes: of what a score's products are added up in.
    """

    query_line: int
    tokens: tuple[int, ...]
    lanes = LANES

    @property
    def whole_lines(self) -> tuple[int, ...]:
        """So many lines of values can be taken at once; fewer if they are masked.

        With AVX-512 that takes as long as to read whole ones.
        """
        return (2,)

    @abstractmethod
    def _factors(self, query) -> Any:
        """What stands at a query's address beside a line of keys."""

    @abstractmethod
    def _add_products(self, totals, factors, line):
        """Adds those of a line of keys and of each query's factors to each one's total."""

    @abstractmethod
    def _add_tokens(self, totals, numbers, weights, values, places, count, ahead, leap):
        """Adds weighted values."""

    def __init__(self, builder, heads):
        self.builder, self.heads = builder, range(heads)

    def score(
        self, q, q_bytes, keys, places, size, more, more_places, more_size, ahead, leap, scores
    ):  # fmt: skip
        b, tokens = self.builder, range(self.tokens[len(self.heads) - 1])
        totals = {(g, t): self._variable(self.lanes) for g in self.heads for t in tokens}
        queries = [b.add(q, b.mul(q_bytes, _LONG(g))) for g in self.heads]
        self._add_keys(totals, queries, keys, places, size, ahead, leap)
        lines = b.udiv(b.add(size, _LONG(PAIRS - 1)), _LONG(PAIRS))
        queries = [b.add(query, b.mul(lines, _LONG(self.query_line))) for query in queries]
        self._add_keys(totals, queries, more, more_places, more_size, ahead, _LONG(0))
        found, count = [b.load(total) for total in totals.values()], len(tokens)
        first = 0
        while first < len(found):
            some = 1 << (min(self.lanes, len(found) - first).bit_length() - 1)
            sums = add_lanes(b, found[first : first + some])
            for i in range(0, some, count):
                part = ir.Constant(ir.VectorType(INT32, count), list(range(i, i + count)))
                row = b.shuffle_vector(sums, sums, part)
                place = _at(b, scores, 4 * TILE * ((first + i) // count), row.type)
                b.store(row, place, align=4)
            first += some

    def add_values(
        self, lines, numbers, weights, kept, values, places, count, ahead, leap, sums, sum_bytes
    ):  # fmt: skip
        offsets = [4 * LANES * i for i in range(2 * lines)]
        with self._in_registers(offsets, LANES, kept, sums, sum_bytes) as totals:
            self._add_tokens(totals, numbers, weights, values, places, count, ahead, leap)

    @contextmanager
    def _in_registers(self, offsets, lanes, kept, sums, sum_bytes):
        """Brings what is kept of each head's sums, so many bytes behind where they begin, into
        registers, and back at the end."""
        b, to, totals = self.builder, {}, {}
        for g in self.heads:
            row = b.add(sums, b.mul(sum_bytes, _LONG(g)))
            share = in_each_lane(b, b.load(_at(b, kept, 4 * g, _FLOAT)), lanes)
            for i, offset in enumerate(offsets):
                to[g, i] = _at(b, row, offset, ir.VectorType(_FLOAT, lanes))
                totals[g, i] = self._variable(lanes)
                b.store(b.fmul(b.load(to[g, i], align=4), share), totals[g, i])
        yield totals
        for place, total in totals.items():
            b.store(b.load(total), to[place], align=4)

    def _add_keys(self, totals, queries, keys, places, size, *coming):
        b = self.builder
        whole = b.udiv(size, _LONG(PAIRS))
        with for_range(b, whole) as loop:
            self._add_line(totals, queries, keys, places, loop.index, None, *coming)
        rest = b.sub(size, b.mul(whole, _LONG(PAIRS)))
        with b.if_then(b.icmp_signed(">", rest, _LONG(0)), likely=False):
            self._add_line(totals, queries, keys, places, whole, rest, *coming)

    def _add_line(self, totals, queries, keys, places, line, numbers, ahead, leap):
        b = self.builder
        keys = b.add(keys, b.mul(line, _LONG(LINE)))
        later = b.add(keys, leap)
        offset = b.mul(line, _LONG(self.query_line))
        factors = [self._factors(b.add(query, offset)) for query in queries]
        # Token by token: what a line becomes leaves its registers to the next one.
        for t in self._tokens_of(totals):
            begin_to_read(b, self._place(later, places, b.add(ahead, _LONG(t))), NEARNESS)
            loaded = self._line(self._place(keys, places, _LONG(t)), numbers)
            self._add_products([totals[g, t] for g in self.heads], factors, loaded)

    def _read_values(self, values, places, token, lines, numbers, ahead, leap):
        """A token's lines, while those of a later one begin to be read."""
        b, loaded = self.builder, []
        value = self._place(values, places, token)
        coming = self._place(b.add(values, leap), places, b.add(token, ahead))
        for line in range(lines):
            begin_to_read(b, b.add(coming, _LONG(LINE * line)), NEARNESS)
            loaded.append(self._line(b.add(value, _LONG(LINE * line)), numbers))
        return loaded

    def _line(self, address, numbers):
        """A line's pairs; if `numbers` isn't None, of so many numbers, and zeros."""
        b = self.builder
        if numbers is None:
            return b.load(_at(b, address, 0, _WORDS), align=2)
        limit = b.trunc(numbers, _HALF)
        limits = b.insert_element(ir.Constant(_HALVES, ir.Undefined), limit, INT32(0))
        zeros = ir.Constant(ir.VectorType(INT32, PAIRS), None)
        limits = b.shuffle_vector(limits, limits, zeros)
        there = b.icmp_signed("<", _ORDER, limits)
        read = [_at(b, address, 0, _HALVES), INT32(2), there, ir.Constant(_HALVES, None)]
        return b.bitcast(call(b, f"llvm.masked.load.v{PAIRS}i16.p0", _HALVES, read), _WORDS)

    def _place(self, pages, places, number):
        b = self.builder
        place = b.load(_at(b, b.add(places, b.mul(number, _LONG(8))), 0, _LONG))
        return b.add(pages, b.mul(place, _LONG(2)))

    def _tokens_of(self, totals):
        return range(len(totals) // len(self.heads))

    def _variable(self, lanes):
        zeros = ir.Constant(ir.VectorType(_FLOAT, lanes), [0.0] * lanes)
        return alloca_once_value(self.builder, zeros)


@no_type_check
class Widened(Tile):
    """Of float32 queries and weights."""

    query_line, tokens = 4 * PAIRS, (16, 8, 4, 4, 4)

    def _factors(self, query):
        b = self.builder
        places = [_at(b, query, 4 * LANES * half, _FLOATS) for half in range(2)]
        return [b.load(place, align=4) for place in places]

    def _add_products(self, totals, factors, line):
        for half, numbers in enumerate(self._singles(line)):
            for total, factor in zip(totals, factors, strict=True):
                self._add(total, numbers, factor[half])

    def _add_tokens(self, totals, numbers, weights, values, places, count, ahead, leap):
        b, lines = self.builder, len(totals) // len(self.heads) // 2
        with for_range(b, count) as loop:
            read = values, places, loop.index, lines, numbers, ahead, leap
            loaded = [half for line in self._read_values(*read) for half in self._singles(line)]
            for g in self.heads:
                weight = in_each_lane(b, self._weight(weights, loop.index, g))
                for i, half in enumerate(loaded):
                    self._add(totals[g, i], half, weight)

    def _weight(self, weights, token, head):
        """A head's weight of a token."""
        b = self.builder
        at = b.add(b.mul(token, _LONG(4)), _LONG(4 * TILE * head))
        return b.load(_at(b, b.add(weights, at), 0, _FLOAT))

    def _singles(self, line):
        """The first of each pair and the second, as float32."""
        return as_singles(self.builder, line)

    def _add(self, total, one, other):
        b = self.builder
        name = f"llvm.fma.v{one.type.count}f32"
        b.store(call(b, name, one.type, [one, other, b.load(total)]), total)


@no_type_check
class Multiplied(Tile):
    """Of bfloat16 queries and weights: of these, a row's first half is there.

    Behind the last of an odd number of tokens its place is repeated, and a weight is 0.
    """

    query_line, tokens = 2 * PAIRS, (16, 8, 8, 4, 4, 4)

    def _factors(self, query):
        return self.builder.load(_at(self.builder, query, 0, _WORDS), align=4)

    def _add_products(self, totals, factors, line):
        b = self.builder
        for total, pairs in zip(totals, factors, strict=True):
            b.store(add_product(b, b.load(total), line, pairs, True), total)

    def _add_tokens(self, totals, numbers, weights, values, places, count, ahead, leap):
        b, lines = self.builder, range(len(totals) // len(self.heads) // 2)
        with for_range(b, b.udiv(b.add(count, _LONG(1)), _LONG(2))) as loop:
            first = b.mul(loop.index, _LONG(2))
            tokens = [
                self._read_values(values, places, token, len(lines), numbers, ahead, leap)
                for token in (first, b.add(first, _LONG(1)))
            ]
            loaded = [next_to_each_other(b, *pair) for pair in zip(*tokens, strict=True)]
            for g in self.heads:
                at = b.add(b.mul(loop.index, _LONG(4)), _LONG(4 * TILE * g))
                weight = in_each_lane(b, b.load(_at(b, b.add(weights, at), 0, INT32)))
                for line in lines:
                    for half, pairs in enumerate(loaded[line]):
                        total = totals[g, 2 * line + half]
                        b.store(add_product(b, b.load(total), pairs, weight, True), total)
