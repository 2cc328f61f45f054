"""How a kernel shares out its work to threads.

`share` and `share_each` call a compiled function once for each worker, or for each of its jobs:
what a loop over `numba.prange` would do, without its compilation. Around such a loop numba puts
three functions, one in the other, each of which it compiles with all that is called in it; and all
of it once more where a kernel does the same for a single thread.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any, no_type_check

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from hybridrt.kernels.cpu.crew import call_work, hand_out, is_on
from hybridrt.kernels.cpu.jit import (
    FEW,
    Decorator,
    Function,
    apart,
    calls,
    inlined,
    kernel,
    plain_kernel,
)

RUN = 512
"""Numbers that one worker takes at least."""

_INT = ir.IntType(64)
_RUN = ir.FunctionType(ir.VoidType(), [_INT] * 3)
"""What a thread calls: with the address of what it needs, a worker, and how many there are."""


@inlined
@no_type_check
def jobs_of(worker, workers, jobs):  # pragma: no cover  (compiled)
    """Where those of a worker begin and end: neighbours, as processors read lines together."""
    return jobs * worker // workers, jobs * (worker + 1) // workers


@inlined
@no_type_check
def numbers_of(worker, workers, size):  # pragma: no cover
    """The same of `size` numbers, of which no two workers write to a line of memory."""
    begin, end = jobs_of(worker, workers, (size + RUN - 1) // RUN)
    return begin * RUN, min(end * RUN, size)


@no_type_check
def _run_workers(run, given, workers):  # pragma: no cover
    if is_on():
        hand_out(run, given, workers)
    else:
        for worker in numba.prange(workers):
            call_work(run, given, np.int64(worker), workers)


run_workers = apart(_run_workers, parallel=True)
"""Calls what is at the address `run` for each worker, all that there are of them at once."""


def _shares(compiles: Decorator, function: Function) -> Function:
    return compiles(calls(run_workers)(function))


parallel_kernel: Decorator = partial(_shares, kernel)
"""A `kernel` that shares out work to threads."""

sharing_kernel: Decorator = partial(_shares, plain_kernel)
"""The same without fast mathematics, for one that only shares out work to `inner` functions."""


@intrinsic
@no_type_check
def share(typing, work, workers, args):
    """Calls `work(worker, workers, *args)` for each worker; for a single one in this thread.

    `work` is an `inner` function that returns nothing. Its parts of the work must not depend on
    each other. What it raises is raised here, when all have ended.
    """
    numbers = (types.int64, types.int64)
    return _share(typing, work, numbers, args, types.void(work, types.int64, args))


@intrinsic
@no_type_check
def share_each(typing, work, workers, jobs, args):
    """Calls `work(job, *args)` for each of the jobs, of which every worker takes neighbours."""
    signature = types.void(work, types.int64, types.int64, args)
    return _share(typing, work, (types.int64,), args, signature)


def _share(typing: Any, work: Any, numbers: Any, args: Any, signature: Any) -> Any:
    if not isinstance(work, types.Dispatcher):
        raise TypingError(f"{work} is shared out, which should be an inner function")
    # A literal would have the work compiled once more.
    kinds = [types.unliteral(kind) for kind in args.types]
    of_work: Any = work.get_call_type(typing, (*numbers, *kinds), {})

    def call(context: Any, builder: Any, _: Any, values: Any) -> Any:
        workers, *jobs, values = values[1:]
        given = _hand_over(context, builder, of_work.args[len(numbers) :], args, [*jobs, values])
        run = _one_worker(context, builder, given, work.dispatcher, of_work, bool(jobs))
        for number in jobs:  # of which one is enough for a worker
            workers = builder.select(builder.icmp_signed("<", number, workers), number, workers)
        here = builder.icmp_signed("<=", workers, _INT(1))
        address = builder.ptrtoint(given, _INT)
        with builder.if_else(here) as (alone, shared):
            with alone:
                builder.call(run, [address, _INT(0), _INT(1)])
            with shared:
                run_all = cgutils.get_or_insert_function(builder.module, _RUN, run_workers.symbol)
                builder.call(run_all, [builder.ptrtoint(run, _INT), address, workers])
        code = builder.load(cgutils.gep_inbounds(builder, given, 0, 0))
        with cgutils.if_unlikely(builder, cgutils.is_not_null(builder, code)):
            about = builder.load(cgutils.gep_inbounds(builder, given, 0, 1))
            status = SimpleNamespace(code=code, excinfoptr=about)
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return signature, call


def _hand_over(context: Any, builder: Any, kinds: Any, args: Any, values: Any) -> Any:
    """Where everything stands that a worker needs: numbers, and what the work is called with.

    Before those there is room for what the work may raise, as numba calls it: a code, and what it
    is about.
    """
    *numbers, packed = values
    about = context.call_conv.get_function_type(types.none, ()).args[1].pointee
    parts = [*(_INT for _ in numbers), *map(context.get_value_type, kinds)]
    room = cgutils.alloca_once(builder, ir.LiteralStructType([ir.IntType(32), about, *parts]))
    unpacked = cgutils.unpack_tuple(builder, packed, len(kinds))
    cast = [
        context.cast(builder, value, kind, as_kind)
        for value, kind, as_kind in zip(unpacked, args.types, kinds, strict=True)
    ]
    for i, value in enumerate([ir.IntType(32)(0), about(None), *numbers, *cast]):
        builder.store(value, cgutils.gep_inbounds(builder, room, 0, i))
    return room


def _one_worker(
    context: Any, builder: Any, room: Any, dispatcher: Any, of_work: Any, by_job: bool
) -> Any:
    """The function that each thread calls: the work of one worker, or all of its jobs."""
    compiled = dispatcher.get_compile_result(of_work)
    work = context.declare_function(builder.module, compiled.fndesc)
    context.active_code_library.add_linking_library(compiled.library)
    name = builder.module.get_unique_name(f"{builder.function.name}.share")
    run = ir.Function(builder.module, _RUN, name)
    run.linkage = "internal"
    inside = ir.IRBuilder(run.append_basic_block())
    given, worker, workers = run.args
    given = inside.inttoptr(given, room.type)
    count = len(room.type.pointee.elements)
    places = [cgutils.gep_inbounds(inside, given, 0, i) for i in range(count)]
    numbers = [inside.load(place) for place in places[2:]]

    def call(*args: Any) -> None:
        status, _ = context.call_conv.call_function(inside, work, types.none, of_work.args, args)
        with cgutils.if_unlikely(inside, status.is_error):
            inside.store(status.code, places[0])
            inside.store(status.excinfoptr, places[1])

    if by_job:
        jobs, *numbers = numbers
        begin, end = (
            inside.sdiv(inside.mul(jobs, part), workers)
            for part in (worker, inside.add(worker, _INT(1)))
        )
        with cgutils.for_range_slice(inside, begin, end, _INT(1)) as (job, _):
            call(job, *numbers)
    else:
        call(worker, workers, *numbers)
    inside.ret_void()
    return run


def threads_for(numbers: int, few: int = FEW) -> int:
    """One where there are few numbers, else all."""
    return 1 if numbers <= few else numba.get_num_threads()
