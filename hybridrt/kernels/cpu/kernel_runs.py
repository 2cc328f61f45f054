"""Kernels' calls made again one behind another, without Python between them.

To call a kernel from Python takes some microseconds where weights have gone through the caches
since: its arguments are objects all over the memory, and each is looked at. Here they are a row of
numbers, as the processor takes them, which a small function, an `entry`, hands over to its kernel.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, no_type_check

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.callconv import RETCODE_NONE, RETCODE_OK
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from hybridrt.kernels.cpu.bfloat16 import integers
from hybridrt.kernels.cpu.crew import begin, stand_by, turn_off, turn_on
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.share import share, sharing_kernel
from hybridrt.kernels.tape import Call

_INT, _CODE = ir.IntType(64), ir.IntType(32)
_ENTRY = ir.FunctionType(_CODE, [_INT])
"""Calls its kernel with the numbers at an address; 0: it did what it is for."""

_NUMBER_BYTES = 8

FEWEST = 4
"""Calls for which other threads stand by."""

_ENTRIES: dict[int, int] = {}
"""Addresses of entries, by those of their kernels."""

_LIBRARIES: list[tuple[Any, dict[int, Any]]] = []
"""What has their machine code, with their kernels, which stay where they are."""


class KernelRun:
    """Some calls of kernels."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        entries = _entries_for([call.compiled for call in calls])
        rows = [[*_numbers_of(call)] for call in calls]
        self._numbers = np.array([number for row in rows for number in row], np.uint64)
        ends = np.cumsum([len(row) for row in rows])
        begins = self._numbers.ctypes.data + _NUMBER_BYTES * np.array([0, *ends[:-1]])
        self._table = np.stack((np.array(entries), begins), axis=1).astype(np.int64)

    def __call__(self) -> None:
        """Makes the calls.

        Raises:
            IndexError: a kernel refuses what it was given; see `Call`.
        """
        done, count = 0, len(self._calls)
        while done < count:
            # Fewer are not worth a crew.
            threads = numba.get_num_threads() if count - done >= FEWEST else 1
            done += _make_calls(threads, self._table[done:].ctypes.data, count - done)
            if done < count:  # It did nothing that it can't do again. From Python it says why.
                self._calls[done]()
                done += 1


class _EntryLibrary(JITCodeLibrary):
    """Of functions in which there is nothing to optimise, while somebody waits for a step."""

    def add_llvm_module(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout
        self._final_module.link_in(ll_module)

    def _optimize_final_module(self) -> None:
        pass


@inner
@no_type_check
def _make_some(table, count):  # pragma: no cover  (compiled, as all below)
    """How many calls went well before one that didn't, or all."""
    rows = integers(table, 2 * count)
    for call in range(count):
        if _enter(rows[2 * call], rows[2 * call + 1]) != 0:
            return call
    return count


@inner
@no_type_check
def _be_of_crew(worker, workers, table, count, made):  # pragma: no cover
    if worker > 0:
        stand_by()
        return
    if workers > 1:
        turn_on()
    integers(made, 1)[0] = _make_some(table, count)
    if workers > 1:
        turn_off()


@sharing_kernel
@no_type_check
def _make_calls(threads, table, count):  # pragma: no cover
    """The same, with a crew of so many threads."""
    made = np.zeros(1, np.int64)
    begin()
    share(_be_of_crew, threads, (table, count, made.ctypes.data))
    return made[0]


@intrinsic
@no_type_check
def _enter(typing_context, entry, numbers):
    def code(context, builder, signature, args):
        entry, numbers = args
        return builder.call(builder.inttoptr(entry, _ENTRY.as_pointer()), [numbers])

    return types.int32(types.int64, types.int64), code


def _entries_for(kernels: Sequence[Any]) -> list[int]:
    """Addresses of the entries of what numba compiled; those that are missing are made at once."""
    found = [_address_of(compiled) for compiled in kernels]
    with global_compiler_lock:
        missing = dict(zip(found, kernels, strict=True))
        for address in missing.keys() & _ENTRIES.keys():
            del missing[address]
        if missing:
            _make_entries(missing)
    return [_ENTRIES[address] for address in found]


def _address_of(compiled: Any) -> int:
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


def _make_entries(kernels: dict[int, Any]) -> None:
    context = next(iter(kernels.values())).target_context
    library = _EntryLibrary(context.codegen(), "entries")
    module = library.create_ir_module("entries")
    for address, compiled in kernels.items():
        _write_entry(module, f"entry_{address}", address, compiled)
    library.add_ir_module(module)
    library.finalize()
    for address in kernels:
        _ENTRIES[address] = library.get_pointer_to_function(f"entry_{address}")
    _LIBRARIES.append((library, kernels))


def _write_entry(module: Any, name: str, address: int, compiled: Any) -> None:
    convention, signature = compiled.target_context.call_conv, compiled.signature
    kind = convention.get_function_type(signature.return_type, signature.args)
    returned, raised, *taken = kind.args
    entry = ir.Function(module, _ENTRY, name)
    b = ir.IRBuilder(entry.append_basic_block())
    places = [b.add(entry.args[0], _INT(_NUMBER_BYTES * i)) for i in range(len(taken))]
    numbers = [
        b.load(b.inttoptr(place, of.as_pointer())) for place, of in zip(places, taken, strict=True)
    ]
    result, about = b.alloca(returned.pointee), b.alloca(raised.pointee)
    compiled_kernel = b.inttoptr(_INT(address), kind.as_pointer())
    code = b.call(compiled_kernel, [result, about, *numbers])
    is_done, is_none = (b.icmp_signed("==", code, end) for end in (RETCODE_OK, RETCODE_NONE))
    well = b.or_(is_done, is_none)
    if signature.return_type == types.boolean:
        value = b.load(result)
        well = b.and_(well, b.icmp_signed("!=", value, value.type(0)))
    b.ret(b.select(well, _CODE(0), _CODE(1)))


def _numbers_of(call: Call) -> Iterator[int]:
    """What a call's arguments are handed over as."""
    for kind, value in zip(call.compiled.signature.args, call.args, strict=True):
        yield from _numbers(kind, value)


def _numbers(kind: Any, value: Any) -> Iterator[int]:
    """One argument, as numba takes it apart: each number in the first bytes of a place of its own.

    Raises:
        TypeError: kernels get no such thing.
    """
    match kind:
        case types.BaseTuple(types=kinds):
            for of_part, part in zip(kinds, value, strict=True):
                yield from _numbers(of_part, part)
        case types.Array():
            yield from _bits(_array(value))
        case types.Integer() | types.Boolean():
            yield from _bits([value])
        case types.Float():
            yield int.from_bytes(np.array(value, kind.name).tobytes(), "little")
        case types.NoneType():
            yield 0
        case _:
            raise TypeError(f"{value!r}, which numba has as {kind}: kernels get numbers")


def _array(value: np.ndarray) -> Iterable[int]:
    """Without an owner, which nothing needs that only reads it."""
    return (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)


def _bits(numbers: Iterable[int]) -> Iterator[int]:
    """Of 64, in two's complement."""
    return (int(number) % 2**64 for number in numbers)
