"""Arithmetic with the vectors of `hybridrt.kernels.cpu.vectors`, and between their lanes."""

from collections.abc import Callable
from typing import Any, no_type_check

from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic

from hybridrt.kernels.cpu.fast_exp import LOG2_E, POWERS, SMALLEST
from hybridrt.kernels.cpu.vectors import FLOATS, INT32, LANES, all_lanes, call, in_each_lane

_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(INT32, LANES)

_FEATURES = binding.get_host_cpu_features()
_HAS_SCALEF, _HAS_REDUCE = (bool(_FEATURES.get(part)) for part in ("avx512f", "avx512dq"))
_MASK = ir.IntType(LANES)
_ALL = ir.Constant(_MASK, -1)
_AS_SET = ir.Constant(INT32, 4)  # rounded as everything else is


def _of_floats(builder: Any, name: str, *args: Any) -> Any:
    return call(builder, f"llvm.{name}.v{LANES}f32", _FLOATS, [*args])


@intrinsic
@no_type_check
def splat(typing_context, number):
    """The number in each lane."""

    def code(context, builder, signature, args):
        return in_each_lane(builder, args[0])

    return FLOATS(types.float32), code


@intrinsic
@no_type_check
def fma(typing_context, a, b, c):
    """`a * b + c`."""

    def code(context, builder, signature, args):
        return _of_floats(builder, "fma", *args)

    return FLOATS(FLOATS, FLOATS, FLOATS), code


@no_type_check
def _make_lane_by_lane(write: Callable[..., Any]) -> Any:
    """A function of two vectors, for each lane of which `write` gives the instructions."""

    @intrinsic
    def run(typing_context, a, b):
        def code(context, builder, signature, args):
            return write(builder, *args)

        return FLOATS(FLOATS, FLOATS), code

    return run


def _picked(builder: Any, comparison: str, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(comparison, a, b), a, b)


mul = _make_lane_by_lane(lambda builder, a, b: builder.fmul(a, b))
div = _make_lane_by_lane(lambda builder, a, b: builder.fdiv(a, b))
add = _make_lane_by_lane(lambda builder, a, b: builder.fadd(a, b))
sub = _make_lane_by_lane(lambda builder, a, b: builder.fsub(a, b))

more_of = _make_lane_by_lane(lambda builder, a, b: _picked(builder, ">", a, b))
"""The larger number in each lane, in one instruction; `b` where either is NaN."""

less_of = _make_lane_by_lane(lambda builder, a, b: _picked(builder, "<", a, b))
"""The smaller number in each lane, in one instruction; `b` where either is NaN."""


@intrinsic
@no_type_check
def larger(typing_context, a, b):
    """The larger number in each lane; NaN where either is."""

    def code(context, builder, signature, args):
        a, b = args
        takes_a = builder.or_(builder.fcmp_ordered(">", a, b), builder.fcmp_unordered("uno", a, a))
        return builder.select(takes_a, a, b)

    return FLOATS(FLOATS, FLOATS), code


@intrinsic
@no_type_check
def any_more(typing_context, a, b):
    """Whether `a` is larger than `b` in any lane; not where either is NaN."""

    def code(context, builder, signature, args):
        lanes = builder.bitcast(builder.fcmp_ordered(">", *args), _MASK)
        return builder.icmp_unsigned("!=", lanes, ir.Constant(_MASK, 0))

    return types.boolean(FLOATS, FLOATS), code


@intrinsic
@no_type_check
def exp(typing_context, x):
    """What `fast_exp` gives, in each lane; for 89 infinity."""

    def code(context, builder, signature, args):
        return _power_of_two(builder, builder.fmul(args[0], all_lanes(float(LOG2_E))))

    return FLOATS(FLOATS), code


@intrinsic
@no_type_check
def exp2(typing_context, x):
    """Two to the power of each lane, at most 127, as exactly as `exp`."""

    def code(context, builder, signature, args):
        return _power_of_two(builder, args[0])

    return FLOATS(FLOATS), code


def _power_of_two(builder: Any, y: Any) -> Any:
    least = all_lanes(float(SMALLEST))
    # A comparison with NaN is false, and NaN goes on.
    y = builder.select(builder.fcmp_ordered("<", y, least), least, y)
    whole, f = _parts_of(builder, y)
    p = all_lanes(float(POWERS[-1]))
    for power in POWERS[-2::-1]:
        p = _of_floats(builder, "fma", p, f, all_lanes(float(power)))
    if _HAS_SCALEF:
        scaled = [p, whole, p, _ALL, _AS_SET]
        return call(builder, "llvm.x86.avx512.mask.scalef.ps.512", _FLOATS, scaled)
    exponent = builder.add(builder.fptosi(whole, _INTS), all_lanes(127, _INTS))
    bits = builder.shl(exponent, all_lanes(23, _INTS))
    return builder.fmul(p, builder.bitcast(bits, _FLOATS))


def _parts_of(builder: Any, y: Any) -> tuple[Any, Any]:
    """The nearest whole number, and the rest, exactly; `y` is no product, which could be fused."""
    if not _HAS_REDUCE:
        whole = _of_floats(builder, "rint", y)
        return whole, builder.fsub(y, whole)
    # Half of what `rint` takes.
    nearest = ir.Constant(INT32, 0)
    f = call(builder, "llvm.x86.avx512.mask.reduce.ps.512", _FLOATS, [y, nearest, y, _ALL, _AS_SET])
    return builder.fsub(y, f), f


def _reduced(builder: Any, floats: Any, join: Any) -> Any:
    """One number of all lanes, by halves."""
    while len(floats.type) > 1:
        half = len(floats.type) // 2
        parts = []
        for start in (0, half):
            mask = ir.Constant(ir.VectorType(INT32, half), list(range(start, start + half)))
            parts.append(builder.shuffle_vector(floats, floats, mask))
        floats = join(*parts)
    return builder.extract_element(floats, ir.Constant(INT32, 0))


@intrinsic
@no_type_check
def sum_of_lanes(typing_context, floats):
    """The sum of all lanes."""

    def code(context, builder, signature, args):
        return _reduced(builder, args[0], builder.fadd)

    return types.float32(FLOATS), code


@intrinsic
@no_type_check
def largest_lane(typing_context, floats):
    """The largest of all lanes."""

    def code(context, builder, signature, args):
        def join(a, b):
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        return _reduced(builder, args[0], join)

    return types.float32(FLOATS), code


def _folded(builder: Any, a: Any, b: Any, width: int) -> Any:
    """Each run of `width` lanes of `a` and then of `b`, its halves added."""
    lanes = range(0, len(a.type) + (0 if b is a else len(b.type)), width)
    parts = []
    for start in (0, width // 2):
        taken = [lane + start + i for lane in lanes for i in range(width // 2)]
        mask = ir.Constant(ir.VectorType(INT32, len(taken)), taken)
        parts.append(builder.shuffle_vector(a, b, mask))
    return builder.fadd(*parts)


def sums_of_four(builder: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sums of four vectors' lanes, in a vector of four."""
    ab, cd = _folded(builder, a, b, LANES), _folded(builder, c, d, LANES)
    sums, width = _folded(builder, ab, cd, LANES // 2), LANES // 4
    while width > 1:
        sums = _folded(builder, sums, sums, width)
        width //= 2
    return sums


@intrinsic
@no_type_check
def store_sums(typing_context, a, b, c, d, to, place):
    """Writes the sums of four vectors' lanes from `place` on, one behind the other."""

    def code(context, builder, signature, args):
        *vectors, into, at = args
        sums = sums_of_four(builder, *vectors)
        address = builder.bitcast(builder.gep(into, [at]), sums.type.as_pointer())
        builder.store(sums, address, align=4)
        return context.get_dummy_value()

    return types.void(FLOATS, FLOATS, FLOATS, FLOATS, to, types.intp), code
