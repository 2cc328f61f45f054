"""Vectors of `LANES` float32 in registers, for numba kernels whose inner loops LLVM doesn't find.

A loop over numbers becomes vector code if LLVM can prove that nothing overlaps, and keeps its
sums in registers if there are few. With these a kernel says itself what stands in a register.
They exist only inside what numba compiles. Where registers are narrower, one takes several.

`load(pointer, place)` begins with that element. What is 16 bits wide is widened as it is loaded,
and rounded to the nearest as it is stored: `uint16` holds bfloat16, the upper half of a float32,
and `int16` holds float16. What can be done with them stands in `vector_math`.

Where the processor has AVX512-BF16 one instruction rounds to bfloat16, to which numbers below
2^-126 are zero; elsewhere it takes nine.
"""

from typing import Any, no_type_check

import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import intrinsic, register_model

from hybridrt.kernels.cpu.jit import inline, inner

LANES = 16  # as many as the widest registers have

_FEATURES = binding.get_host_cpu_features()

HAS_REGISTERS = all(_FEATURES.get(f"avx512{part}") for part in ("f", "bw", "dq", "vl"))
"""Whether a vector is one register, which is what kernels of pairs are written for: AVX-512."""

HAS_VECTORS = HAS_REGISTERS or all(_FEATURES.get(part) for part in ("avx2", "fma"))
"""Whether vectors of float32 are multiplied and added at once, in one register or in halves: AVX2.
Without AVX-512 torch has no fast product of bfloat16."""

MULTIPLIES_PAIRS = HAS_REGISTERS and bool(_FEATURES.get("avx512bf16"))
"""Whether the processor rounds a register to bfloat16, and multiplies two registers of pairs of
such numbers and adds both products of a pair, in one instruction each."""

IS_ZEN = binding.get_host_cpu_name().startswith("znver")
"""Whether it is one of AMD's processors, of the kinds since 2017."""

IS_ZEN_4 = binding.get_host_cpu_name() == "znver4"
"""The first of them with AVX-512. Some of what is read once it brings otherwise, as measured."""

ONCE = 0 if IS_ZEN else 3
"""For `begin_to_read`: how near it brings what is used once. On AMD's processors past all caches
but the nearest: in the others it would take the places of code and of what kernels hand on, which
then come from memory. To Intel's with AMX lines come more slowly so."""

READS_PAGES = HAS_REGISTERS and not IS_ZEN and not _FEATURES.get("amx-tile")
"""Whether a core reads several pages of memory together faster than one behind the other, as it was
measured on Intel's without AMX: they read on along a page by themselves, but only some lines."""

PAGE = 4096
"""Bytes of one."""

PAGES = 8
"""So many together, as measured."""

LINE = 64
"""Bytes that a processor reads at a time."""

binding.initialize_native_asmparser()  # for the instruction that `narrow` names

INT32 = ir.IntType(32)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(INT32, LANES)


class _Floats(types.Type):
    """numba's type of one vector."""

    def __init__(self) -> None:
        super().__init__(name=f"Float32x{LANES}")


FLOATS = _Floats()


@register_model(_Floats)
class _Model(PrimitiveModel):
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _FLOATS)


def all_lanes(number: float, of: Any = _FLOATS) -> Any:
    """A constant with that number in each lane."""
    return ir.Constant(of, [number] * LANES)


def call(builder: Any, name: str, result: Any, args: list[Any], **flags: Any) -> Any:
    """Calls a function that LLVM has for vectors."""
    module = builder.module
    of = ir.FunctionType(result, [arg.type for arg in args])
    function = module.globals.get(name) or ir.Function(module, of, name)
    return builder.call(function, args, **flags)


def in_each_lane(builder: Any, value: Any, lanes: int = LANES) -> Any:
    """A vector with that value in each lane."""
    empty = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(INT32, 0))
    mask = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, empty, mask)


def unknown(builder: Any, number: Any) -> Any:
    """The same integer, which LLVM takes for another: it knows nothing about it."""
    of = ir.FunctionType(number.type, [number.type])
    return builder.asm(of, "", "=r,0", [number], False)


def _address(builder: Any, pointer: Any, place: Any, of: Any) -> Any:
    return builder.bitcast(builder.gep(pointer, [place]), of.as_pointer())


def stored(pointer: Any) -> tuple[Any, str, int]:
    """The vector as it stands there, LLVM's name of it, and the bytes of an element."""
    if pointer.dtype == types.float32:
        return _FLOATS, f"v{LANES}f32", 4
    return _HALVES, f"v{LANES}i16", 2


def _widen(builder: Any, raw: Any, dtype: Any) -> Any:
    if dtype == types.float32:
        return raw
    if dtype == types.int16:
        return builder.fpext(builder.bitcast(raw, ir.VectorType(ir.HalfType(), LANES)), _FLOATS)
    upper = builder.shl(builder.zext(raw, _INTS), all_lanes(16, _INTS))
    return builder.bitcast(upper, _FLOATS)


def narrow(builder: Any, floats: Any, dtype: Any) -> Any:
    """The vector as elements of that dtype, rounded to the nearest, of two to the even one."""
    if dtype == types.float32:
        return floats
    if dtype == types.int16:
        halves = builder.fptrunc(floats, ir.VectorType(ir.HalfType(), LANES))
        return builder.bitcast(halves, _HALVES)
    if MULTIPLIES_PAIRS:
        of = ir.FunctionType(_HALVES, [_FLOATS])
        return builder.asm(of, "vcvtneps2bf16 $1, $0", "=v,v", [floats], False)
    bits = builder.bitcast(floats, _INTS)
    odd = builder.and_(builder.lshr(bits, all_lanes(16, _INTS)), all_lanes(1, _INTS))
    rounded = builder.add(bits, builder.add(odd, all_lanes(0x7FFF, _INTS)))
    is_nan = builder.fcmp_unordered("uno", floats, floats)
    rounded = builder.select(is_nan, all_lanes(0x7FC00000, _INTS), rounded)
    return builder.trunc(builder.lshr(rounded, all_lanes(16, _INTS)), _HALVES)


def first_lanes(builder: Any, count: Any) -> Any:
    """A mask of the first `count` lanes."""
    lanes = ir.Constant(_INTS, list(range(LANES)))
    return builder.icmp_signed("<", lanes, in_each_lane(builder, builder.trunc(count, INT32)))


@intrinsic
@no_type_check
def pointer(typing_context, array):
    """To an array's first element. Who holds it must hold the array.

    Arrays are counted wherever they are passed on, in inner loops too; pointers are not.
    """

    def code(context, builder, signature, args):
        return context.make_array(array)(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), code


@intrinsic
@no_type_check
def load(typing_context, to, place):
    """The elements from `place` on."""

    def code(context, builder, signature, args):
        raw, _, align = stored(to)
        address = _address(builder, args[0], args[1], raw)
        return _widen(builder, builder.load(address, align=align), to.dtype)

    return FLOATS(to, types.intp), code


@intrinsic
@no_type_check
def load_some(typing_context, to, place, count):
    """The `count` elements from `place` on, and zeros; no other element is read."""

    def code(context, builder, signature, args):
        raw, name, align = stored(to)
        address = _address(builder, args[0], args[1], raw)
        some, zeros = first_lanes(builder, args[2]), ir.Constant(raw, None)
        read = [address, ir.Constant(INT32, align), some, zeros]
        return _widen(builder, call(builder, f"llvm.masked.load.{name}.p0", raw, read), to.dtype)

    return FLOATS(to, types.intp, types.intp), code


@intrinsic
@no_type_check
def store(typing_context, floats, to, place):
    """Writes all lanes from `place` on."""

    def code(context, builder, signature, args):
        raw, _, align = stored(to)
        address = _address(builder, args[1], args[2], raw)
        builder.store(narrow(builder, args[0], to.dtype), address, align=align)
        return context.get_dummy_value()

    return types.void(FLOATS, to, types.intp), code


@intrinsic
@no_type_check
def store_some(typing_context, floats, to, place, count):
    """Writes the first `count` lanes from `place` on."""

    def code(context, builder, signature, args):
        raw, name, align = stored(to)
        address = _address(builder, args[1], args[2], raw)
        numbers, some = narrow(builder, args[0], to.dtype), first_lanes(builder, args[3])
        written = [numbers, address, ir.Constant(INT32, align), some]
        call(builder, f"llvm.masked.store.{name}.p0", ir.VoidType(), written)
        return context.get_dummy_value()

    return types.void(FLOATS, to, types.intp, types.intp), code


@no_type_check
def begin_to_read(builder, address, nearness=3):
    """Has the line of memory at an address (a number) brought into a cache: 3 L1, 2 L2, 1 L3;
    0 L1 alone."""
    line = builder.inttoptr(address, ir.IntType(8).as_pointer())
    how = [ir.Constant(INT32, number) for number in (0, nearness, 1)]  # to read; data
    call(builder, "llvm.prefetch.p0", ir.VoidType(), [line, *how])


@no_type_check
def begin_to_read_all(builder, address, lines, nearness=3):
    """The same of so many lines, of memory of which every line is asked for, one behind another.

    Where several pages are read together it asks for other lines of them (`line_of_pages`), so
    that this has to be used `PAGES * PAGE` bytes later, or part of it comes after it was used. That
    many `lines` divide `PAGES`.
    """
    apart = LINE
    if READS_PAGES:
        # Of lines that begin where a number of them would, each is a page behind the one before.
        first = builder.and_(address, ir.IntType(64)(-lines * LINE))
        address, apart = line_of_pages(builder, first), PAGE
    for line in range(lines):
        begin_to_read(builder, builder.add(address, ir.IntType(64)(line * apart)), nearness)


@no_type_check
def line_of_pages(builder, address, pages=PAGES):
    """The address of a line of the same `pages`: neighbours become lines of unlike pages."""
    long = ir.IntType(64)
    number = builder.udiv(address, long(LINE))
    page = builder.urem(number, long(pages))
    line = builder.urem(builder.udiv(number, long(pages)), long(PAGE // LINE))
    first = builder.and_(address, long(-pages * PAGE))
    within = builder.add(builder.mul(page, long(PAGE)), builder.mul(line, long(LINE)))
    return builder.add(first, within)


@intrinsic
@no_type_check
def prefetch(typing_context, to, place):
    """Has the line of memory with that element brought into the second cache."""

    def code(context, builder, signature, args):
        address = _address(builder, args[0], args[1], ir.IntType(8))
        begin_to_read(builder, builder.ptrtoint(address, ir.IntType(64)), 2)
        return context.get_dummy_value()

    return types.void(to, types.intp), code


@inner
@no_type_check
def aligned(count):  # pragma: no cover  (compiled)
    """Room for `count` float32 numbers, of which a vector never lies in two lines of memory."""
    room = np.empty(count + LANES, np.float32)
    skipped = -(room.ctypes.data // 4) % LANES
    return room[skipped : skipped + count]


@inline
@no_type_check
def load_up_to(numbers, place, count):  # pragma: no cover
    """`load_some`, where a mask isn't free: of whole vectors, `load`."""
    return load(numbers, place) if count >= LANES else load_some(numbers, place, count)


@inline
@no_type_check
def store_up_to(floats, to, place, count):  # pragma: no cover
    """`store_some`; of whole vectors, `store`."""
    if count >= LANES:
        store(floats, to, place)
    else:
        store_some(floats, to, place, count)
