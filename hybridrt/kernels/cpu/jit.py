"""How numba compiles the kernels of this folder.

Divisions are those of the processor: Python's, which raise at zero, keep a loop from being
vectorised. Of fast mathematics there is all that leaves infinities and NaN what they are.

What Python calls gets numbers and addresses, so that the call can be made again (`Tape`): it is a
`Kernel`, which no compiled function can call.

On disk numba keeps a function that Python calls with all that it calls but what is compiled
`apart`, and makes it anew when its own file changes. After a change of another file, remove the
`*.nbi` in `__pycache__`.
"""

from collections.abc import Callable
from functools import cache, partial, update_wrapper
from typing import Any, TypeVar, get_type_hints

import numba
import numpy as np
from llvmlite import binding
from numba.core import types
from numba.extending import typeof_impl

from hybridrt.kernels.cpu.on_disk import Callback, OnDisk
from hybridrt.kernels.cpu.parts import Part
from hybridrt.kernels.tape import recording

_OPTIONS: dict[str, Any] = {
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},
    "error_model": "numpy",
}

FEW = 2**13
"""Elements up to which waking other threads would cost more than they save."""

FIRST, ALONE = np.int64(0), np.int64(1)
"""0 and 1 where others pass an int64. For literals, numba would compile a function with all that it
calls once more."""

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

_APART: dict[Any, tuple[Function, bool]] = {}
"""What is compiled by itself, by what stands for it in compiled code."""


def apart(function: Function, parallel: bool = False) -> Any:
    """Compiles a function of integers, which returns nothing, by itself: not with its callers.

    For a large one that several kernels call, or one at several places, each of which would have
    numba compile it again. They name it with `calls`. If it is `parallel`, all threads share its
    loops over `numba.prange`.
    """
    name = f"{function.__module__}.{function.__name__}"
    arguments = [types.int64] * function.__code__.co_argcount
    symbol = types.ExternalFunction(name, types.void(*arguments))
    _APART[symbol] = function, parallel
    return symbol


def calls(*parts: Function, spared: tuple[Function, ...] = ()) -> Callable[[Function], Function]:
    """Says which functions, compiled `apart`, are called below this one.

    Those are compiled, or read from disk, before it is called first; not what is `spared`: what is
    called for other kinds of arguments than this one is given.
    """

    def mark(function: Function) -> Function:
        vars(function)["calls"] = (*parts_of(function), *parts)
        vars(function)["spared"] = (*spared_by(function), *spared)
        return function

    return mark


def parts_of(function: Function) -> tuple[Any, ...]:
    """What that one `calls`."""
    return vars(function).get("calls", ())


def spared_by(function: Function) -> tuple[Any, ...]:
    """What that one would call for other arguments."""
    return vars(function).get("spared", ())


@cache
def _load(part: Any) -> Any:
    """Lets compiled code find a part; what is returned keeps it in memory."""
    function, parallel = _APART[part]
    for other in parts_of(function):
        _load(other)
    options: dict[str, Any] = {"parallel": True} if parallel else {}
    compiled = Callback(function, part.sig, {"error_model": "numpy", **options})
    binding.add_symbol(part.symbol, compiled.address)
    return compiled


T = TypeVar("T", bound=type)

_NUMBERS = {int: types.int64, float: types.float64, bool: types.boolean}


def argument(kind: T) -> T:
    """Says once what numba takes such a named tuple for: its fields are what they are declared as.

    Else it asks every field at every call, which takes longer than a small kernel.
    """
    fields = [_NUMBERS[field] for field in get_type_hints(kind).values()]
    known = types.BaseTuple.from_types(fields, kind)
    typeof_impl.register(kind)(lambda value, context: known)
    return kind


class Kernel:
    """A compiled function for calls from Python, which a tape that is being recorded notes.

    One that can't do with the numbers it is given returns False.
    """

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._parts = parts_of(compiled.py_func)
        update_wrapper(self, compiled.py_func)  # pyright: ignore[reportFunctionMemberAccess]

    def __call__(self, *args: Any) -> Any:
        if self._parts:
            self._load_parts()
        result, tape = self._compiled(*args), recording.tape
        if tape is not None:
            compiled = self._compiled_for(args)
            tape.add(compiled.entry_point, args, compiled)
        return result

    def _load_parts(self) -> None:
        """Once: to look up what has been loaded takes as long as a small kernel."""
        for part in self._parts:
            _load(part)
        self._parts = ()

    def _compiled_for(self, args: tuple[Any, ...]) -> Any:
        """What numba compiled for such arguments. Python calls its `entry_point`.

        To find that out takes longer than the call, above all of named tuples, and longest in a
        step whose weights have gone through the caches since the last one.
        """
        kinds = tuple(map(self._compiled.typeof_pyval, args))
        return self._compiled.overloads[kinds]


def _compiles(function: Function, **options: Any) -> Kernel:
    compiled: Any = numba.njit(**options)(function)
    compiled._cache = OnDisk(function)
    return Kernel(compiled)


kernel: Decorator = partial(_compiles, **_OPTIONS)
"""Compiles what Python calls, and keeps the result on disk."""

plain_kernel: Decorator = partial(_compiles, error_model="numpy")
"""The same without fast mathematics."""

inlined: Decorator = partial(numba.njit, **_OPTIONS, inline="always")
"""Compiles as a part of what calls it."""

inner: Decorator = partial(Part, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compiles what only compiled functions call, as a part of them; see `parts`."""

inner_fast: Decorator = partial(inner, **_OPTIONS)
"""The same with the divisions and the fast mathematics of kernels."""

inner_sums: Decorator = partial(inner, fastmath={"contract", "nsz"})
"""The same, free to multiply and add in one step; sums stay in the order they are written in."""

inner_exact: Decorator = partial(inner, fastmath=False)
"""The same, each operation as it is written.

What says nothing about its mathematics has that of the function which calls it.
"""

inline: Decorator = partial(inner, forceinline=True)
"""`inner` of a few lines, which become a part of every function that calls them."""
