"""Queries of some heads and a tile of tokens in bfloat16: scores, and sums of values, for LLVM.

A line of memory has 32 numbers, which are taken as 16 pairs: the first of each pair and the second
are float32 after one instruction each, where to widen them in their order takes two and half as
much is read at once. So queries stand as they do, the first of 16 pairs before the second, and so
do sums of values. Up to `MOST_HEADS` heads use what is widened, and their sums stay in registers.
"""

from collections.abc import Sequence
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic

from hybridrt.kernels.cpu.attend_tile import TILE
from hybridrt.kernels.cpu.packed_dot import LINE
from hybridrt.kernels.cpu.pairs import as_singles
from hybridrt.kernels.cpu.vectors import (
    INT32,
    LANES,
    all_lanes,
    begin_to_read,
    call,
    in_each_lane,
)

PAIRS = 2 * LANES
"""Numbers in a line of memory."""

TOKENS = (16, 8, 8, 4, 4, 4)
"""At once, by the number of heads less one: as many sums as there are registers for."""

MOST_HEADS = len(TOKENS)

_LONG, _HALF = ir.IntType(64), ir.IntType(16)
_FLOAT = ir.FloatType()
_FLOATS, _WORDS = ir.VectorType(_FLOAT, LANES), ir.VectorType(INT32, LANES)
_HALVES = ir.VectorType(_HALF, PAIRS)
_ORDER = ir.Constant(_HALVES, list(range(PAIRS)))


@intrinsic
@no_type_check
def score(
    context, heads, q, q_bytes, keys, places, size, more, more_places, more_size, ahead, leap,
    scores
):  # fmt: skip
    """Writes the scores of `TOKENS[heads - 1]` tokens, a row of `TILE` for each head.

    All are addresses or numbers: of queries, `q_bytes` apart, of pages and of `int64`, where in
    them each token's keys of `size` numbers begin, and of the keys' other part. It begins to read
    keys of the tokens `ahead` places later, `leap` bytes behind where those begin.
    """

    def code(context, builder, signature, args):
        heads, *rest = args
        for count in range(1, MOST_HEADS + 1):
            with builder.if_then(builder.icmp_signed("==", heads, _LONG(count))):
                _Tile(builder, count).score(*rest)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 12), code


@intrinsic
@no_type_check
def add_values(
    context, heads, numbers, weights, kept, values, places, count, ahead, leap, sums,
    sum_bytes
):  # fmt: skip
    """`sums = kept * sums + weights * values` of `count` tokens, for two lines of values or one.

    All are addresses or numbers: of rows of `TILE` weights, of a float32 for each head, of the
    first line of values where pages begin, of `int64`, where in those a token is, and of sums,
    `sum_bytes` from head to head. It is two whole lines, or one with `numbers` in it; values of the
    tokens `ahead` places later, `leap` bytes behind where they begin, begin to be read.
    """

    def code(context, builder, signature, args):
        heads, numbers, *rest = args
        is_one = builder.icmp_signed("<=", numbers, _LONG(PAIRS))
        for count in range(1, MOST_HEADS + 1):
            tile, is_count = _Tile(builder, count), builder.icmp_signed("==", heads, _LONG(count))
            with builder.if_then(is_count), builder.if_else(is_one) as (one, two):
                with one:
                    tile.add_values(1, numbers, *rest)
                with two:
                    tile.add_values(2, None, *rest)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 12), code


@intrinsic
@no_type_check
def one_behind_another(typing_context, line):
    """Puts the first of each pair of a line's float32, at an address, before the others."""

    def code(context, builder, signature, args):
        _permute(builder, args[0], [*range(0, PAIRS, 2), *range(1, PAIRS, 2)])
        return context.get_dummy_value()

    return types.none(types.int64), code


@intrinsic
@no_type_check
def side_by_side(typing_context, line):
    """Puts them into their order again."""

    def code(context, builder, signature, args):
        _permute(builder, args[0], [LANES * (i % 2) + i // 2 for i in range(PAIRS)])
        return context.get_dummy_value()

    return types.none(types.int64), code


@no_type_check
def _permute(builder, line, order):
    places = [_at(builder, line, 4 * LANES * half, _FLOATS) for half in range(2)]
    first, second = (builder.load(place, align=4) for place in places)
    for half, place in enumerate(places):
        mask = ir.Constant(_WORDS, order[LANES * half : LANES * (half + 1)])
        builder.store(builder.shuffle_vector(first, second, mask), place, align=4)


@no_type_check
def _at(b, address, offset, kind):
    return b.inttoptr(b.add(address, _LONG(offset)), kind.as_pointer())


@no_type_check
class _Tile:
    """Writes the instructions for some heads."""

    def __init__(self, builder, heads):
        self.builder, self.heads = builder, range(heads)

    def score(
        self, q, q_bytes, keys, places, size, more, more_places, more_size, ahead, leap, scores
    ):  # fmt: skip
        b, tokens = self.builder, range(TOKENS[len(self.heads) - 1])
        totals = {(g, t): self._variable() for g in self.heads for t in tokens}
        queries = [b.add(q, b.mul(q_bytes, _LONG(g))) for g in self.heads]
        self._add_keys(totals, queries, keys, places, size, ahead, leap)
        lines = b.udiv(b.add(size, _LONG(PAIRS - 1)), _LONG(PAIRS))
        queries = [b.add(query, b.mul(lines, _LONG(4 * PAIRS))) for query in queries]
        self._add_keys(totals, queries, more, more_places, more_size, ahead, _LONG(0))
        found, count = [b.load(total) for total in totals.values()], len(tokens)
        for first in range(0, len(found), LANES):
            some = found[first : first + LANES]
            sums = _sums(b, some)
            for i in range(0, len(some), count):
                part = ir.Constant(ir.VectorType(INT32, count), list(range(i, i + count)))
                row = b.shuffle_vector(sums, sums, part)
                place = _at(b, scores, 4 * TILE * ((first + i) // count), row.type)
                b.store(row, place, align=4)

    def add_values(
        self, lines, numbers, weights, kept, values, places, count, ahead, leap, sums, sum_bytes
    ):  # fmt: skip
        b, lines = self.builder, range(lines)
        totals = {
            (g, line): (self._variable(), self._variable()) for g in self.heads for line in lines
        }
        to = {
            (g, line): [
                _at(
                    b,
                    b.add(sums, b.mul(sum_bytes, _LONG(g))),
                    4 * LANES * (2 * line + half),
                    _FLOATS,
                )
                for half in range(2)
            ]
            for g, line in totals
        }
        for (g, line), total in totals.items():
            share = in_each_lane(b, b.load(_at(b, kept, 4 * g, _FLOAT)))
            for place, half in zip(to[g, line], total, strict=True):
                b.store(b.fmul(b.load(place, align=4), share), half)
        with for_range(b, count) as loop:
            value = self._place(values, places, loop.index)
            coming = self._place(b.add(values, leap), places, b.add(loop.index, ahead))
            loaded = []
            for line in lines:
                begin_to_read(b, b.add(coming, _LONG(LINE * line)), 2)
                loaded.append(as_singles(b, self._line(b.add(value, _LONG(LINE * line)), numbers)))
            for g in self.heads:
                at = b.add(b.mul(loop.index, _LONG(4)), _LONG(4 * TILE * g))
                weight = in_each_lane(b, b.load(_at(b, b.add(weights, at), 0, _FLOAT)))
                for line in lines:
                    for half, total in zip(loaded[line], totals[g, line], strict=True):
                        self._add(total, half, weight)
        for place, total in totals.items():
            for into, half in zip(to[place], total, strict=True):
                b.store(b.load(half), into, align=4)

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
        loaded = {}
        for t in sorted({t for _, t in totals}):
            begin_to_read(b, self._place(later, places, b.add(ahead, _LONG(t))), 2)
            loaded[t] = as_singles(b, self._line(self._place(keys, places, _LONG(t)), numbers))
        for half in range(2):
            for g, query in enumerate(queries):
                place = b.add(query, b.mul(line, _LONG(4 * PAIRS)))
                factor = b.load(_at(b, place, 4 * LANES * half, _FLOATS), align=4)
                for t, singles in loaded.items():
                    self._add(totals[g, t], singles[half], factor)

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

    def _add(self, total, one, other):
        b = self.builder
        args = [one, other, b.load(total)]
        b.store(call(b, f"llvm.fma.v{LANES}f32", _FLOATS, args), total)

    def _variable(self):
        return alloca_once_value(self.builder, all_lanes(0.0))


def _sums(builder: Any, vectors: Sequence[Any]) -> Any:
    """The sums of the lanes of 4, 8 or 16 vectors, in a vector of as many lanes."""
    placed, width = vectors, LANES
    while len(placed) > 1:
        half = len(placed) // 2
        placed = [
            _join(builder, *pair, width) for pair in zip(placed[:half], placed[half:], strict=True)
        ]
        width //= 2
    (sums,) = placed
    while width > 1:
        size = len(vectors) * width // 2
        parts = []
        for start in (0, width // 2):
            lanes = [
                lane // (width // 2) * width + start + lane % (width // 2) for lane in range(size)
            ]
            mask = ir.Constant(ir.VectorType(INT32, size), lanes)
            parts.append(builder.shuffle_vector(sums, sums, mask))
        sums, width = builder.fadd(*parts), width // 2
    return sums


def _join(builder: Any, a: Any, b: Any, width: int) -> Any:
    """In each run of `width` lanes, first those of `a` with its halves added, then those of `b`."""
    half, lanes = width // 2, range(LANES)
    as_they_are = [lane if lane % width < half else LANES + lane for lane in lanes]
    others = [lane + half if lane % width < half else LANES + lane - half for lane in lanes]
    parts = [
        builder.shuffle_vector(a, b, ir.Constant(_WORDS, mask)) for mask in (as_they_are, others)
    ]
    return builder.fadd(*parts)
