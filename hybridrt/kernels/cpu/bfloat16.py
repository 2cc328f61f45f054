"""bfloat16 in numba, which has none: 16 bits that are the upper half of a float32.

Kernels of a few microseconds get addresses instead of arrays, since making an array of a tensor
would take as long as they do. Inside of a kernel `elements` and the like are arrays again.
"""

from typing import no_type_check

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, overload
from numba.np import arrayobj
from torch import Tensor

from hybridrt.kernels.cpu.jit import inlined

DTYPES = {
    torch.float32: np.empty(0, np.float32),
    torch.bfloat16: np.empty(0, np.uint16),
}
"""What kernels of both take, with an array of the numbers that they have of each."""

VECTOR_DTYPES = {**DTYPES, torch.float16: np.empty(0, np.int16)}
"""The same of kernels that read with `vectors`."""


def of_dtype(tensor: Tensor) -> np.ndarray:
    """An array of a tensor's kind of numbers, by which a kernel is chosen.

    Raises:
        TypeError: there is no kernel for them.
    """
    if tensor.dtype not in VECTOR_DTYPES:
        raise TypeError(f"{tensor.dtype}: kernels of a CPU read {[*VECTOR_DTYPES]}")
    return VECTOR_DTYPES[tensor.dtype]


def is_readable(tensor: Tensor) -> bool:
    """Whether `vectors` read it: numbers that they know, side by side in its last axis."""
    return tensor.dtype in VECTOR_DTYPES and (tensor.stride(-1) == 1 or tensor.shape[-1] <= 1)


def are_singles(*tensors: Tensor) -> bool:
    """Whether these are float32, side by side in their last axes."""
    return all(t.dtype == torch.float32 and t.stride(-1) == 1 for t in tensors)


@no_type_check
def _array(context, builder, kind, address, count, owner=None):
    """An array of that kind, of which nobody owns the numbers if there is no `owner`."""
    array = arrayobj.make_array(kind)(context, builder)
    size = context.get_constant(types.intp, arrayobj.get_itemsize(context, kind))
    arrayobj.populate_array(
        array,
        data=builder.inttoptr(address, array.data.type),
        shape=[count],
        strides=[size],
        itemsize=size,
        meminfo=owner,
    )
    return array._getvalue()


# `numba.carray` would be compiled anew for each kind of numbers, and of count.
@no_type_check
def _array_of(dtype):
    """A function that makes an array of the `count` numbers at an address."""
    kind = types.Array(dtype, 1, "C")

    @intrinsic
    def numbers(typing_context, address, count):
        def code(context, builder, signature, args):
            return _array(context, builder, kind, *args)

        return kind(types.int64, types.int64), code

    return numbers


octets, halves, words = _array_of(types.uint8), _array_of(types.uint16), _array_of(types.uint32)
"""Of bytes; of bfloat16, as uint16; of pairs of bfloat16."""

singles, doubles = _array_of(types.float32), _array_of(types.float64)
integers, short_integers = _array_of(types.int64), _array_of(types.int32)
shorts, signed_octets = _array_of(types.int16), _array_of(types.int8)


@intrinsic
@no_type_check
def elements(typing_context, address, count, like):
    """The `count` numbers at an address, of the kind that an array has."""
    kind = types.Array(like.dtype, 1, "C")

    def code(context, builder, signature, args):
        return _array(context, builder, kind, *args[:2])

    return kind(types.int64, types.int64, like), code


# An array's own `view` takes long to compile: it has words for all that it can't be asked for.
@no_type_check
def _taken_for(dtype):
    """A function that takes an array's memory, which it keeps, for numbers of that kind."""
    kind = types.Array(dtype, 1, "C")

    @intrinsic
    def taken(typing_context, array):
        if array.layout != "C":
            return None  # which numba refuses

        def code(context, builder, signature, args):
            given = arrayobj.make_array(array)(context, builder, args[0])
            address = builder.ptrtoint(given.data, cgutils.intp_t)
            size = context.get_constant(types.intp, arrayobj.get_itemsize(context, kind))
            count = builder.udiv(builder.mul(given.nitems, given.itemsize), size)
            numbers = _array(context, builder, kind, address, count, given.meminfo)
            return impl_ret_borrowed(context, builder, kind, numbers)

        return kind(array), code

    return taken


as_halves, as_words, as_singles = map(_taken_for, (types.uint16, types.uint32, types.float32))
"""The memory of an array without gaps, as other numbers."""


@intrinsic
@no_type_check
def copy_bytes(typing_context, given, into, size):
    """Copies `size` bytes from an address to another one.

    numba takes seconds to compile an array's assignment to another, of which most is for the words
    that say what sizes they had.
    """

    def code(context, builder, signature, args):
        source, target = (builder.inttoptr(place, cgutils.voidptr_t) for place in args[:2])
        cgutils.raw_memmove(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), code


@intrinsic
@no_type_check
def _float_of(typing_context, bits):
    def code(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), code


@intrinsic
@no_type_check
def _bits_of(typing_context, number):
    def code(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), code


@inlined
@no_type_check
def widen(half):  # pragma: no cover  (compiled, as all below)
    """A bfloat16 as float32, which it is exactly."""
    return _float_of(np.uint32(half) << np.uint32(16))


@inlined
@no_type_check
def narrow(number):  # pragma: no cover
    """A float32 as the nearest bfloat16, of two the even one."""
    bits = _bits_of(number)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    return np.uint16(rounded if number == number else np.uint32(0x7FC0))


@no_type_check
def as_float(element):
    """An element of an array of float32, or of bfloat16 as uint16, as float32."""
    raise NotImplementedError("for compiled code")


@no_type_check
def as_element(number, like):
    """A float32 as such an array has it, rounded where that is needed."""
    raise NotImplementedError("for compiled code")


@overload(as_float)
@no_type_check
def _as_float(element):  # pragma: no cover
    if element == types.uint16:
        return lambda element: _float_of(np.uint32(element) << np.uint32(16))
    return lambda element: element


@overload(as_element)
@no_type_check
def _as_element(number, like):  # pragma: no cover
    if like.dtype == types.uint16:
        return lambda number, like: narrow(number)
    return lambda number, like: number
