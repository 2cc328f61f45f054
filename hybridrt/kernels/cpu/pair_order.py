"""Registers of float32 put in order for `pair_tile`, and added up, for LLVM."""

from collections.abc import Sequence
from typing import Any, no_type_check

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hybridrt.kernels.cpu.vectors import INT32, LANES

PAIRS = 2 * LANES
"""Numbers in a line of memory."""

_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(INT32, LANES)


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
    offsets = [ir.Constant(ir.IntType(64), 4 * LANES * half) for half in range(2)]
    places = [builder.inttoptr(builder.add(line, at), _FLOATS.as_pointer()) for at in offsets]
    first, second = (builder.load(place, align=4) for place in places)
    for half, place in enumerate(places):
        mask = ir.Constant(_WORDS, order[LANES * half : LANES * (half + 1)])
        builder.store(builder.shuffle_vector(first, second, mask), place, align=4)


def add_lanes(builder: Any, vectors: Sequence[Any]) -> Any:
    """The sums of the lanes of vectors, a power of two, no more than lanes: one behind another."""
    placed, width = vectors, vectors[0].type.count
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
    count = a.type.count
    half, lanes, of_mask = width // 2, range(count), ir.VectorType(INT32, count)
    as_they_are = [lane if lane % width < half else count + lane for lane in lanes]
    others = [lane + half if lane % width < half else count + lane - half for lane in lanes]
    parts = [
        builder.shuffle_vector(a, b, ir.Constant(of_mask, mask)) for mask in (as_they_are, others)
    ]
    return builder.fadd(*parts)
