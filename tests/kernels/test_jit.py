"""Functions that are compiled apart, or as parts of others, and who says that it calls them."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple, no_type_check

import numba
import numpy as np
import pytest
from numba.core.codegen import JITCodeLibrary
from numba.core.dispatcher import Dispatcher
from numba.core.types import ExternalFunction

import hybridrt.kernels.cpu as kernels
from hybridrt.kernels.cpu.jit import _APART, Kernel, argument, inner, parts_of, spared_by
from hybridrt.kernels.cpu.share import run_workers, share, share_each

MODULES = [name for _, name, _ in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}.")]

_PROGRAM = """
import sys

import numpy as np
from hybridrt.kernels.cpu.bfloat16 import integers
from hybridrt.kernels.cpu.jit import apart, calls, kernel

@apart
def add(numbers, count, what):
    of = integers(numbers, count)
    for i in range(count):
        of[i] += what

@apart
@calls(add)
def add_twice(numbers, count, what):
    add(numbers, count, what)
    add(numbers, count, what)

@kernel
@calls(add_twice)
def run(numbers, count):
    for what in range(3):
        add_twice(numbers, count, what)

numbers = np.zeros(3, np.int64)
run(numbers.ctypes.data, 2)
print(*numbers, sum(run._compiled.stats.cache_hits.values()), "numba.cpython.setobj" in sys.modules)
"""


def test_a_process_finds_what_another_one_compiled(tmp_path: Path) -> None:
    """And reads it without all that numba needs to compile anything."""
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    for hits, is_ready in ((0, "True"), (1, "False")):
        result = subprocess.run(
            [sys.executable, str(program)], capture_output=True, text=True, check=True
        )
        assert result.stdout.split() == ["6", "6", "0", str(hits), is_ready]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names(part)


def _called(function: Any, seen: set[Any]) -> Iterator[ExternalFunction]:
    """What is compiled apart and reached from a function, through all that numba compiles for it.

    An overload of a function has its name behind an underscore, in the same module.
    """
    if function in seen:
        return
    seen.add(function)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, ExternalFunction):
            yield value
        elif value is share or value is share_each:
            yield run_workers
        elif isinstance(value, Dispatcher):
            yield from _called(value.py_func, seen)
        elif isinstance(value, FunctionType) and value.__module__ in MODULES:
            overload = value.__globals__.get(f"_{value.__name__}")
            for each in (value, overload):
                if isinstance(each, FunctionType):
                    yield from _called(each, seen)


def _shared_out() -> Iterator[Any]:
    """What kernels give to `share` and `share_each`."""
    for name in MODULES:
        module = importlib.import_module(name)
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            match node:
                case ast.Call(ast.Name("share" | "share_each"), [ast.Name(work), *_]):
                    yield getattr(module, work)


def test_no_worker_shares_out_work() -> None:
    """There is one crew at a time, and its first thread alone hands out work."""
    works = {work.py_func for work in _shared_out()}
    assert len(works) > 40
    for work in works:
        assert run_workers not in [*_called(work, set())], work


@inner
@no_type_check
def _half(number):  # pragma: no cover  (compiled, as all below)
    if number % 2 != 0:
        raise ValueError("an odd number")
    return number // 2


@inner
@no_type_check
def _quarter(number):  # pragma: no cover
    return _half(_half(number))


def test_parts_are_machine_code_in_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And raise there what they would raise."""
    compiled: list[str] = []
    finalize = JITCodeLibrary._finalize_specific

    def note(library: JITCodeLibrary) -> None:
        compiled.append(library.name)
        finalize(library)

    monkeypatch.setattr(JITCodeLibrary, "_finalize_specific", note)

    @numba.njit
    @no_type_check
    def quarter_of(number):  # pragma: no cover
        return _quarter(number)

    assert quarter_of(20) == 5
    with pytest.raises(ValueError, match="an odd number"):
        quarter_of(22)
    names = {name.split(".")[-1] for name in compiled}
    assert "quarter_of" in names and names.isdisjoint({"_half", "_quarter"})


@pytest.mark.parametrize("first", ["fused", "as written"])
def test_a_part_has_the_mathematics_of_who_calls_it(first: str) -> None:
    """Whoever was compiled first; `product + number` in one step keeps the product's last bits."""

    @inner
    @no_type_check
    def add(product, number):
        return product * product + number

    @inner
    @no_type_check
    def through(product, number):
        return add(product, number)

    callers = {
        name: numba.njit(fastmath=mathematics)(lambda product, number: through(product, number))
        for name, mathematics in [("fused", {"contract"}), ("as written", False)]
    }
    numbers = np.float32(1 + 2**-12), np.float32(-1 - 2**-11)
    found = {name: callers[name](*numbers) for name in sorted(callers, key=lambda n: n != first)}
    assert found == {"fused": 2**-24, "as written": 0}


@pytest.mark.parametrize("name", MODULES)
def test_what_is_called_is_said(name: str) -> None:
    """Else compiled code wouldn't find it in a process that takes the code from disk."""
    module = importlib.import_module(name)
    kernels = [value.__wrapped__ for value in vars(module).values() if isinstance(value, Kernel)]
    for function in [*kernels, *(function for function, _ in _APART.values())]:
        if function.__module__ == name:
            said = {*parts_of(function), *spared_by(function)}
            assert set(_called(function, set())) == said, function


@pytest.mark.parametrize("name", MODULES)
def test_kernels_take_plain_arguments(name: str) -> None:
    """A tape finds what numba compiled by the kinds of a call's arguments, one for each."""
    for value in vars(importlib.import_module(name)).values():
        if isinstance(value, Kernel):
            for parameter in inspect.signature(value).parameters.values():
                assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD, value
                assert parameter.default is parameter.empty, value


def test_some_functions_are_called_so() -> None:
    importlib.import_module("hybridrt.kernels.cpu.blocked_moe")
    assert len(_APART) > 1
    assert len({part.symbol for part in _APART}) == len(_APART)


class _Declared(NamedTuple):
    count: int
    share: float
    is_whole: bool


class _Asked(NamedTuple):
    count: int
    share: float
    is_whole: bool


def test_tuples_are_what_their_fields_are_declared_as() -> None:
    """And that is what numba finds by asking each field."""
    argument(_Declared)
    given = (2, 0.5, True)
    declared, asked = numba.typeof(_Declared(*given)), numba.typeof(_Asked(*given))
    assert declared.types == asked.types
    assert numba.typeof(_Declared(2, 1, True)) is declared  # an int may stand for a float

    @numba.njit
    def read(of: Any) -> Any:
        return of.count * of.share if of.is_whole else 0.0

    assert read(_Declared(*given)) == read(_Declared(1, 1, True)) == 1.0
    assert len(read.signatures) == 1
