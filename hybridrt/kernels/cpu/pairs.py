"""Registers of pairs of bfloat16: their products, and numbers rounded to them, for LLVM.

Where the processor has AVX512-BF16 that is one instruction each, elsewhere a few.
"""

from typing import Any, no_type_check

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hybridrt.kernels.cpu.vectors import (
    FLOATS,
    INT32,
    IS_ZEN,
    LANES,
    MULTIPLIES_PAIRS,
    all_lanes,
    call,
    in_each_lane,
    narrow,
    unknown,
)

BY_PAIRS = MULTIPLIES_PAIRS and IS_ZEN
"""Whether that is faster than to widen both numbers, as on AMD's processors. Intel's take twice as
long for a pair as for two products of float32: 0.5 a cycle beside 2."""

_FLOATS, _PAIRS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(INT32, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_ONES = all_lanes(0x3F803F80, _PAIRS)
_UPPER_BITS = -(1 << 16)
UPPER = all_lanes(_UPPER_BITS, _PAIRS)
"""The bits of the second of each pair."""


def add_product(builder: Any, total: Any, one: Any, other: Any, by_pairs: bool = BY_PAIRS) -> Any:
    """`total` and both products of each pair; without `by_pairs` one after the other.

    The second of a pair is added first, as that instruction does, so that both give the same bits.
    """
    if by_pairs:
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return call(builder, name, _FLOATS, [total, one, other])
    parts = zip(as_singles(builder, one), as_singles(builder, other), strict=True)
    for weight, number in reversed([*parts]):
        args = [weight, number, total]
        total = call(builder, f"llvm.fma.v{LANES}f32", _FLOATS, args)
    return total


def add_halves(builder: Any, halves: Any, weights: Any, inputs: Any) -> None:
    """Adds products of the first of each pair to the first of `halves`, of the second to the other.

    Those are where both sums are stored.
    """
    parts = as_singles(builder, weights), as_singles(builder, inputs)
    for half, weight, number in zip(halves, *parts, strict=True):
        args = [weight, number, builder.load(half)]
        builder.store(call(builder, f"llvm.fma.v{LANES}f32", _FLOATS, args), half)


def as_singles(builder: Any, pairs: Any) -> tuple[Any, Any]:
    """The first of each pair and the second, as float32."""
    return first_of(builder, pairs), second_of(builder, pairs)


def first_of(builder: Any, pairs: Any) -> Any:
    """The first of each pair, as float32."""
    return builder.bitcast(builder.shl(pairs, all_lanes(16, _PAIRS)), _FLOATS)


def second_of(builder: Any, pairs: Any, upper: Any = UPPER) -> Any:
    """The second of each pair, as float32; `upper` has their bits."""
    return builder.bitcast(builder.and_(pairs, upper), _FLOATS)


def unknown_upper(builder: Any) -> Any:
    """`UPPER`, which LLVM takes for another: else it mixes pairs with zeros, for which AVX2 needs
    them in a register. What is made before a loop stays there.
    """
    return in_each_lane(builder, unknown(builder, ir.Constant(INT32, _UPPER_BITS)))


def next_to_each_other(builder: Any, one: Any, other: Any) -> tuple[Any, Any]:
    """The first of each pair of either, side by side, and the second of each."""
    low, bits = all_lanes((1 << 16) - 1, _PAIRS), all_lanes(16, _PAIRS)
    first = builder.or_(builder.and_(one, low), builder.shl(other, bits))
    second = builder.or_(builder.lshr(one, bits), builder.and_(other, builder.not_(low)))
    return first, second


@intrinsic
@no_type_check
def cut(typing_context, floats):
    """Each number without the bits that bfloat16 doesn't have: rounded towards zero."""

    def code(context, builder, signature, args):
        return as_singles(builder, builder.bitcast(args[0], _PAIRS))[1]

    return FLOATS(FLOATS), code


@intrinsic
@no_type_check
def load_both(typing_context, to, place):
    """The first of each pair from the word `place` on, and the second."""

    def code(context, builder, signature, args):
        address = builder.bitcast(builder.gep(args[0], [args[1]]), _PAIRS.as_pointer())
        both = as_singles(builder, builder.load(address, align=4))
        return context.make_tuple(builder, signature.return_type, both)

    return types.UniTuple(FLOATS, 2)(to, types.intp), code


@intrinsic
@no_type_check
def store_tops(typing_context, one, other, to, place):
    """Writes all lanes of either, cut to bfloat16, as pairs from the word `place` on."""

    def code(context, builder, signature, args):
        _, both = next_to_each_other(builder, *(builder.bitcast(arg, _PAIRS) for arg in args[:2]))
        address = builder.bitcast(builder.gep(args[2], [args[3]]), _PAIRS.as_pointer())
        builder.store(both, address, align=4)
        return context.get_dummy_value()

    return types.void(FLOATS, FLOATS, to, types.intp), code


@intrinsic
@no_type_check
def store_in_pairs(typing_context, floats, to, place, apart):
    """Writes each lane as bfloat16 in a pair with zero: before it from the word `place` on, and
    behind it `apart` words further.
    """

    def code(context, builder, signature, args):
        floats, into, place, apart = args
        first = builder.zext(narrow(builder, floats, types.uint16), _PAIRS)
        second = builder.shl(first, all_lanes(16, _PAIRS))
        for pairs, at in ((first, place), (second, builder.add(place, apart))):
            address = builder.bitcast(builder.gep(into, [at]), _PAIRS.as_pointer())
            builder.store(pairs, address, align=4)
        return context.get_dummy_value()

    return types.void(FLOATS, to, types.intp, types.intp), code


@intrinsic
@no_type_check
def store_and_add(typing_context, one, other, to, place, total):
    """Writes all lanes of one and then of the other as bfloat16, from `place` on.

    Returns `total` with these numbers, as they are written, two in each lane.
    """

    def code(context, builder, signature, args):
        one, other, into, at, total = args
        both = _rounded(builder, one, other)
        address = builder.bitcast(builder.gep(into, [at]), _PAIRS.as_pointer())
        builder.store(both, address, align=2)
        return add_product(builder, total, both, _ONES, MULTIPLIES_PAIRS)

    return FLOATS(FLOATS, FLOATS, to, types.intp, FLOATS), code


def _rounded(builder: Any, one: Any, other: Any) -> Any:
    if MULTIPLIES_PAIRS:
        of = ir.FunctionType(_PAIRS, [_FLOATS, _FLOATS])
        return builder.asm(of, "vcvtne2ps2bf16 $1, $2, $0", "=v,v,v", [one, other], False)
    halves = (narrow(builder, part, types.uint16) for part in (one, other))
    lanes = ir.Constant(ir.VectorType(INT32, 2 * LANES), [*range(2 * LANES)])
    return builder.bitcast(builder.shuffle_vector(*halves, lanes), _PAIRS)
