"""Products of weights of 8 or 4 bits with some vectors, written out for LLVM.

Weights are widened to pairs of 16 bits, multiplied with pairs of inputs that are whole numbers too
(`whole_inputs`), and added to sums of 32 bits, in one or two instructions. Weights lie as
`QuantisedWeight` has them. Only a group's sum is a float, which is multiplied by its scales and
added to what the groups before it gave.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, no_type_check

import torch
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic

from hybridrt.kernels.blocked_matrices import BLOCK
from hybridrt.kernels.cpu.packed_dot import MOST_VECTORS, REGISTERS, registers_at_once
from hybridrt.kernels.cpu.tile_registers import HAS_TILES
from hybridrt.kernels.cpu.vectors import (
    HAS_REGISTERS,
    INT32,
    LANES,
    LINE,
    ONCE,
    PAGE,
    PAGES,
    READS_PAGES,
    all_lanes,
    begin_to_read,
    begin_to_read_all,
    call,
    in_each_lane,
)
from hybridrt.kernels.cpu.whole_inputs import TOO_MUCH

AHEAD = PAGES * PAGE if READS_PAGES else 8192 if HAS_REGISTERS and not HAS_TILES else 1024
"""Bytes by which reading weights of 8 bits into the nearest cache is ahead of multiplying them, as
measured with AMX, with AVX-512 alone, and with neither."""

AHEAD_OF_4 = AHEAD // 2 if READS_PAGES else AHEAD
"""The same of 4 bits: more calculation for each byte."""

FURTHER = 7168 if HAS_TILES else 0
"""Bytes by which reading them into the second cache is further ahead, if at all: the nearest one
can wait for a few lines only, which keeps memory from being read as fast as it can."""

WIDEN_AHEAD = PAGES * PAGE if READS_PAGES else 8192
"""The same where a whole group is widened before it is multiplied."""

SCALES_AHEAD = 2048

KINDS = 3
"""Of nibbles that are multiplied where they stand, as 1, 16 or 256 times what they are: one
instruction each, where to bring them down takes two. The highest, 4096 times, is brought down. Each
kind has sums of its own, which 64 inputs in a group don't fill."""

MOST_IN_PLACE = 1 if HAS_REGISTERS else 0
"""Vectors for which they are: for more, registers don't hold all sums."""

_LOWEST = 0x000F_000F
_HALF, _LONG = ir.IntType(16), ir.IntType(64)
_FLOATS, _INTS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(INT32, LANES)
_HALVES = ir.VectorType(_HALF, 2 * LANES)
_SMALL_NUMBERS = ir.Constant(
    _HALVES,
    torch.arange(-TOO_MUCH, TOO_MUCH)
    .bfloat16()
    .repeat(LANES // TOO_MUCH)
    .view(torch.int16)
    .tolist(),
)


@no_type_check
def make_group_dot(
    bits: int, counts: Iterable[int] = range(1, MOST_VECTORS + 1)
) -> Callable[..., Any]:
    """A function `(ahead, count, values, scales, groups, group, numbers, of_groups, bytes, sums)`.

    All are addresses or numbers: of the values and scales of a block, of its groups and of inputs
    in one, of the numbers of the first of `count` vectors (one of `counts`) and what it has of
    these groups, of bytes from a vector to the next, and of `float32[count, BLOCK]`, to which it
    adds. It begins to read what lies `ahead` bytes behind the values that it multiplies. With 16
    bits values have been widened.
    """

    @intrinsic
    def dot(context, ahead, count, values, scales, groups, group, numbers, of_groups, step, sums):
        def code(context, builder, signature, args):
            ahead, count, *of_weight, group = args[:6]
            for number in counts:
                with builder.if_then(builder.icmp_signed("==", count, _LONG(number))):
                    own = _Group(builder, bits, group, ahead, FURTHER)
                    own.multiply(number, *of_weight, *args[6:])
            return context.get_dummy_value()

        return types.none(*[types.int64] * 10), code

    return dot


@no_type_check
def make_group_widen(bits: int, for_tiles: bool) -> Callable[..., Any]:
    """A function `(values, inputs, block)` for compiled code.

    It writes whole groups of so many `inputs` as `int16[inputs / 2, BLOCK, 2]`; or `for_tiles`
    those of 8 bits as `int8[inputs / 4, BLOCK, 4]`, and of 4 bits as `bfloat16[inputs / 2, BLOCK,
    2]` without what they are too much.
    """

    @intrinsic
    def widen(typing_context, values, inputs, block):
        def code(context, builder, signature, args):
            further = FURTHER if bits == 8 else 0  # to widen 4 bits takes longer than to read them
            # Beside tiles what comes next is asked for while they are multiplied.
            ahead = None if for_tiles else _LONG(WIDEN_AHEAD)
            group = _Group(builder, bits, args[1], ahead, further)
            if not for_tiles:
                group.widen(args[0], args[2])
            elif HAS_TILES:
                (group.widen_to_bytes if bits == 8 else group.widen_to_bfloat16)(args[0], args[2])
            return context.get_dummy_value()

        return types.none(*[types.int64] * 3), code

    return widen


@intrinsic
@no_type_check
def add_group(typing_context, count, found, scales, of_group, step, sums):
    """Adds what a group gives `count` vectors, `found: float32[count, BLOCK]`; as `add_bytes`."""

    def code(context, builder, signature, args):
        own = _Group(builder, 4, _LONG(0), _LONG(0), 0)
        own.add_found(*args)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 6), code


@intrinsic
@no_type_check
def add_bytes(typing_context, count, upper, lower, scales, of_group, step, sums):
    """Adds what a group gives `count` vectors, whose upper and lower bytes were multiplied.

    All others are addresses or bytes: of `int32[count, BLOCK]` of either, of the group's scales,
    of what the first vector has of the group and from there to the next, and of
    `float32[count, BLOCK]`, to which it adds.
    """

    def code(context, builder, signature, args):
        own = _Group(builder, 8, _LONG(0), _LONG(0), 0)
        own.add_bytes(*args)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 7), code


@no_type_check
class _Group:
    """Writes the instructions for a group of a block's inputs."""

    def __init__(self, builder, bits, group, ahead, further):
        self.builder, self.bits, self.group = builder, bits, group
        self.ahead, self.further = ahead, further
        self.pairs = 4 if bits == 4 else 1  # at a time, of what is loaded at once

    def multiply(self, count, *args):
        """In parts of the outputs where registers don't hold all sums."""
        at_once = REGISTERS if HAS_REGISTERS else registers_at_once(count)
        for first in range(0, REGISTERS, at_once):
            self._multiply_part(range(first, first + at_once), count, *args)

    def _multiply_part(self, part, count, values, scales, groups, numbers, of_groups, step, sums):
        b, places = self.builder, [(t, r) for t in range(count) for r in part]
        kinds = range(KINDS if self.bits == 4 and count <= MOST_IN_PLACE else 1)
        found = {
            place: [alloca_once_value(b, all_lanes(0, _INTS)) for _ in kinds] for place in places
        }
        given = [b.add(numbers, b.mul(step, _LONG(t))) for t in range(count)]
        starts = [b.add(of_groups, b.mul(step, _LONG(t))) for t in range(count)]
        with for_range(b, groups) as loop:
            for line in range(0, 2 * BLOCK, LINE):
                at = b.add(self._times(loop.index, 2 * BLOCK), _LONG(SCALES_AHEAD + line))
                begin_to_read(b, b.add(scales, at), ONCE)
            of_group = self._times(loop.index, 8)
            for t, r in places:
                start = self._load(starts[t], b.add(of_group, _LONG(4)), INT32, 4)
                first, *others = found[t, r]
                b.store(in_each_lane(b, start), first)
                for other in others:
                    b.store(all_lanes(0, _INTS), other)
            before = b.mul(loop.index, self.group)
            own = b.add(values, self._times(before, BLOCK // 8 * self.bits))
            with for_range(b, b.udiv(self.group, _LONG(2 * self.pairs))) as turn:
                at = b.add(self._times(before, 2), self._times(turn.index, 4 * self.pairs))
                self._step(own, turn.index, [b.add(vector, at) for vector in given], found, part)
            at_scales = b.add(scales, self._times(loop.index, 2 * BLOCK))
            of_outputs = dict(zip(part, self._scales(at_scales, part), strict=True))
            for t, r in places:
                power = self._load(starts[t], of_group, ir.FloatType(), 4)
                to = b.add(sums, _LONG(4 * (t * BLOCK + r * LANES)))
                whole, *others = [b.load(kind) for kind in found[t, r]]
                for k, other in enumerate(others, 1):
                    whole = b.add(whole, b.ashr(other, all_lanes(4 * k, _INTS)))
                self._add(b.sitofp(whole, _FLOATS), of_outputs[r], power, to)

    def add_bytes(self, count, upper, lower, scales, of_group, step, sums):
        b = self.builder
        for at, scale, power in self._results(count, scales, of_group, step):
            high, low = (self._load(part, at, _INTS, 4) for part in (upper, lower))
            whole = b.add(b.shl(high, all_lanes(8, _INTS)), low)
            self._add(b.sitofp(whole, _FLOATS), scale, power, b.add(sums, at))

    def add_found(self, count, found, scales, of_group, step, sums):
        for at, scale, power in self._results(count, scales, of_group, step):
            whole = self._load(found, at, _FLOATS, 4)
            self._add(whole, scale, power, self.builder.add(sums, at))

    def _results(self, count, scales, of_group, step) -> Iterator[tuple[Any, Any, Any]]:
        """Of each vector and register of outputs: its place, their scales, the vector's power."""
        b, of_outputs = self.builder, self._scales(scales)
        with for_range(b, count) as loop:
            power = b.add(of_group, b.mul(step, loop.index))
            power = self._load(power, _LONG(0), ir.FloatType(), 4)
            for r, scale in enumerate(of_outputs):
                yield b.add(self._times(loop.index, 4 * BLOCK), _LONG(4 * LANES * r)), scale, power

    def _scales(self, address, part=range(REGISTERS)):
        """Of these outputs, in registers."""
        b, raw = self.builder, ir.VectorType(_HALF, LANES)
        halves = [self._load(address, _LONG(2 * LANES * r), raw, 2) for r in part]
        words = [b.shl(b.zext(half, _INTS), all_lanes(16, _INTS)) for half in halves]
        return [b.bitcast(word, _FLOATS) for word in words]

    def _add(self, whole, scale, power, to):
        """A whole sum times its scale, to the floats at an address."""
        b = self.builder
        scale = b.fmul(scale, in_each_lane(b, power))
        args = [whole, scale, self._load(to, _LONG(0), _FLOATS, 4)]
        total = call(b, f"llvm.fma.v{LANES}f32", _FLOATS, args)
        b.store(total, b.inttoptr(to, _FLOATS.as_pointer()), align=4)

    def widen(self, values, block):
        b = self.builder
        with for_range(b, b.udiv(self.group, _LONG(2 * self.pairs))) as turn:
            for k, r, pairs in self._words(values, turn.index):
                row = b.add(self._times(turn.index, self.pairs), _LONG(k))
                self._store(pairs, block, row, r)

    def widen_to_bytes(self, values, block):
        """Of 8 bits."""
        b = self.builder
        with for_range(b, b.udiv(self.group, _LONG(4))) as turn:
            rows = [b.add(self._times(turn.index, 2), _LONG(half)) for half in range(2)]
            made = [self._words(values, row, widened=False) for row in rows]
            for (_, r, first), (_, _, second) in zip(*made, strict=True):
                quads = b.or_(first, b.shl(second, all_lanes(16, _INTS)))
                self._store(quads, block, turn.index, r)

    def widen_to_bfloat16(self, values, block):
        """Of 4 bits, each of which says which of a table's 16 numbers it is."""
        b = self.builder
        with for_range(b, b.udiv(self.group, _LONG(2 * self.pairs))) as turn:
            for k, r, pairs in self._words(values, turn.index):
                args = [_SMALL_NUMBERS, b.bitcast(pairs, _HALVES)]
                found = call(b, "llvm.x86.avx512.permvar.hi.512", _HALVES, args)
                row = b.add(self._times(turn.index, self.pairs), _LONG(k))
                self._store(b.bitcast(found, _INTS), block, row, r)

    def _step(self, values, turn, vectors, sums, part):
        """Adds products of what is loaded at once."""
        b, kinds = self.builder, len(sums[0, part[0]])
        for k, r, words in self._words(values, turn, part=part, in_place=kinds > 1):
            for t, vector in enumerate(vectors):
                pair = in_each_lane(b, self._load(vector, _LONG(4 * k), INT32, 2))
                to = sums[t, r][k % kinds]
                b.store(b.add(b.load(to), _products(b, words, pair)), to)

    def _words(
        self, values, turn, widened=True, part=range(REGISTERS), in_place=False
    ) -> Iterator[tuple[int, int, Any]]:
        """Which of a turn's pairs, which outputs, and such a pair of each, of 16 bits a number.

        Those of 8 bits stand side by side in the lower half if they aren't `widened`. Those of 4
        that are left `in_place` are of the `KINDS` in order, and again from the first one on.
        """
        b = self.builder
        if self.bits != 16 and self.ahead is not None:  # those of 16 don't come from memory
            size = 2 * self.pairs * BLOCK * self.bits // 8
            place = b.add(b.add(values, self.ahead), self._times(turn, size))
            begin_to_read_all(b, place, size // LINE, ONCE)
            for line in range(0, size if self.further else 0, LINE):
                begin_to_read(b, b.add(place, _LONG(self.further + line)), 2)
        of_turn = BLOCK * (2 if self.bits == 8 else 4)
        places = [b.add(self._times(turn, of_turn), _LONG(of_turn // REGISTERS * r)) for r in part]
        if self.bits == 8 and widened:
            raw = ir.VectorType(ir.IntType(8), 2 * LANES)
            loaded = [self._load(values, at, raw, 1) for at in places]
            loaded = [b.bitcast(b.sext(words, _HALVES), _INTS) for words in loaded]
        elif self.bits == 8:
            raw = ir.VectorType(_HALF, LANES)
            loaded = [b.zext(self._load(values, at, raw, 1), _INTS) for at in places]
        else:
            loaded = [self._load(values, at, _INTS, 1) for at in places]
        for k in range(self.pairs):
            for r, words in zip(part, loaded, strict=True):
                if in_place and k < KINDS:
                    words = b.and_(words, all_lanes(_LOWEST << 4 * k, _INTS))
                elif in_place:  # it has the sign's bit, and nothing above it
                    highest = ir.Constant(_HALVES, [4 * k] * 2 * LANES)
                    words = b.bitcast(b.lshr(b.bitcast(words, _HALVES), highest), _INTS)
                elif self.bits == 4:
                    words = b.lshr(words, all_lanes(4 * k, _INTS)) if k else words
                    words = b.and_(words, all_lanes(_LOWEST, _INTS))
                yield k, r, words

    def _load(self, base, offset, kind, align):
        address = self.builder.add(base, offset)
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def _store(self, words, block, row, r):
        b = self.builder
        to = b.add(block, b.add(self._times(row, 4 * BLOCK), _LONG(4 * LANES * r)))
        b.store(words, b.inttoptr(to, _INTS.as_pointer()), align=4)

    def _times(self, number, factor):
        return self.builder.mul(number, _LONG(factor))


@no_type_check
def _products(b, one, other):
    """Both products of each pair, added."""
    one, other = (b.bitcast(words, _HALVES) for words in (one, other))
    if HAS_REGISTERS:
        return call(b, "llvm.x86.avx512.pmaddw.d.512", _INTS, [one, other])
    wide = ir.VectorType(INT32, 2 * LANES)
    products = b.mul(b.sext(one, wide), b.sext(other, wide))
    halves = [[2 * lane + half for lane in range(LANES)] for half in range(2)]
    first, second = (
        b.shuffle_vector(products, products, ir.Constant(_INTS, half)) for half in halves
    )
    return b.add(first, second)
