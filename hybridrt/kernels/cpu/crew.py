"""Threads that stand by while one of them makes call after call of kernels.

To begin a loop over `numba.prange`, and to wait for its end, takes some microseconds: as long as a
small kernel. In a row of calls (`kernel_runs`) that is done once. Meanwhile the first thread hands
out work by writing down what it is; the others look for that all the time, and each takes worker
after worker by adding one to a ticket: the number of the work, how many workers it is for, and how
many have been taken. So nobody waits for a thread that doesn't come.

Only whoever holds Python's lock makes calls, so there is one crew at a time.
"""

import ctypes
import os
import platform
from typing import Any, no_type_check

import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic

from hybridrt.kernels.cpu.atomics import claim, read, write
from hybridrt.kernels.cpu.jit import inline, inner
from hybridrt.kernels.cpu.vectors import call

_LINE = 64  # bytes: of what others write or look at all the time, each has a line of its own
_TICKET, _DONE, _WORK, _IS_OVER = (_LINE * i for i in range(4))
_RUN, _GIVEN, _IS_ON = _WORK, _WORK + 8, _WORK + 16

_BITS = 16  # of a ticket for the workers, and of it for those that were taken
_MASK = (1 << _BITS) - 1

_PATIENCE = 2**16
"""Looks until a thread doesn't expect the first one any more: it might be to run behind it."""

_SPINS = 256
"""Looks, some 10 us of them, until a thread lets others run that wait for its core."""

_INT = ir.IntType(64)
_RUN_ONE = ir.FunctionType(ir.VoidType(), [_INT] * 3)
_BOARD = "hybridrt.kernels.cpu.crew.board"

_memory = np.zeros(8 * _LINE, np.uint8)
binding.add_symbol(_BOARD, int(_memory.ctypes.data) + -int(_memory.ctypes.data) % _LINE)

_CAN_YIELD = os.name == "posix"
_YIELD = "hybridrt.kernels.cpu.crew.yield"
if _CAN_YIELD:
    _yield = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value
    assert _yield is not None
    binding.add_symbol(_YIELD, _yield)


@intrinsic
@no_type_check
def _board(typing_context):
    """Where all of it is written down."""

    def code(context, builder, signature, args):
        place = builder.module.globals.get(_BOARD) or ir.GlobalVariable(
            builder.module, _INT, _BOARD
        )
        return builder.ptrtoint(place, _INT)

    return types.int64(), code


@intrinsic
@no_type_check
def _pause(typing_context):
    """Leaves the core's units to others that it has."""

    def code(context, builder, signature, args):
        if platform.machine().lower() in ("x86_64", "amd64"):
            call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
@no_type_check
def _let_others_run(typing_context):
    def code(context, builder, signature, args):
        if _CAN_YIELD:
            call(builder, _YIELD, ir.IntType(32), [])
        return context.get_dummy_value()

    return types.void(), code


@inline
@no_type_check
def _wait(looks):  # pragma: no cover  (compiled, as all below)
    """Before one looks again, who did so many times."""
    _pause()
    if looks > _SPINS:
        _let_others_run()


@intrinsic
@no_type_check
def call_work(typing_context, run, given, worker, workers):
    """Calls what is at the address `run`, for a worker."""

    def code(context: Any, builder: Any, _: Any, args: Any) -> Any:
        builder.call(builder.inttoptr(args[0], _RUN_ONE.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(run, given, worker, workers), code


@inline
@no_type_check
def is_on():  # pragma: no cover
    """Whether a crew stands by."""
    return read(_board() + _IS_ON) != 0


@inner
@no_type_check
def _take(board):  # pragma: no cover
    """Takes one worker after the other, while there are any."""
    while True:
        ticket = claim(board + _TICKET)
        worker, workers = ticket & _MASK, ticket >> _BITS & _MASK
        if worker >= workers:
            return
        # Until this one is done, nobody writes down other work.
        call_work(read(board + _RUN), read(board + _GIVEN), worker, workers)
        claim(board + _DONE)


@inner
@no_type_check
def hand_out(run, given, workers):  # pragma: no cover
    """Has the crew call what is at the address `run` for each worker; `call_work`'s arguments."""
    board = _board()
    write(board + _RUN, run)
    write(board + _GIVEN, given)
    write(board + _DONE, 0)
    number = (read(board + _TICKET) >> 2 * _BITS) + 1
    write(board + _TICKET, number << 2 * _BITS | workers << _BITS)
    _take(board)
    looks = 0
    while read(board + _DONE) < workers:
        _wait(looks)
        looks += 1


@inline
@no_type_check
def begin():  # pragma: no cover
    """Before the crew comes."""
    write(_board() + _IS_OVER, 0)


@inline
@no_type_check
def turn_on():  # pragma: no cover
    """From now on the thread that calls this hands out its work."""
    write(_board() + _IS_ON, 1)


@inline
@no_type_check
def turn_off():  # pragma: no cover
    """There is no more; the others leave."""
    write(_board() + _IS_ON, 0)
    write(_board() + _IS_OVER, 1)


@inner
@no_type_check
def stand_by():  # pragma: no cover
    """What all but the first thread do, until that turns the crew off."""
    board, looks = _board(), 0
    while read(board + _IS_OVER) == 0 and (looks < _PATIENCE or is_on()):
        ticket = read(board + _TICKET)
        if ticket & _MASK < ticket >> _BITS & _MASK:
            _take(board)
            looks = 0
        else:
            _wait(looks)
            looks += 1
