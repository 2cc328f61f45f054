"""Calls of kernels in a row do what they do one by one from Python."""

from collections.abc import Callable
from typing import Any, NamedTuple, no_type_check

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.kernels.cpu import kernel_runs
from hybridrt.kernels.cpu.bfloat16 import integers, singles
from hybridrt.kernels.cpu.jit import argument, inner, kernel
from hybridrt.kernels.cpu.share import share, sharing_kernel
from hybridrt.kernels.tape import Tape, recording

INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
SINGLES = st.floats(width=32, allow_nan=False)
NUMBERS = 16


@argument
class Sizes(NamedTuple):
    rows: int
    scale: float
    turned: bool


@kernel
@no_type_check
def _write_down(  # pragma: no cover  (compiled, as all below)
    whole, real, single, yes, sizes, none, numbers, unsigned, address
):
    noted = integers(address, NUMBERS)
    noted[0], noted[1], noted[2] = (
        whole,
        np.float64(real).view(np.int64),
        np.float32(single).view(np.int32),
    )
    noted[3], noted[4] = yes, sizes.rows
    noted[5], noted[6] = np.float64(sizes.scale).view(np.int64), sizes.turned
    noted[7] = none is None
    noted[8], noted[9], noted[10] = numbers.size, numbers.itemsize, numbers[1, 2]
    noted[11], noted[12] = numbers.strides[0], numbers.shape[1]
    noted[13] = np.uint64(unsigned).view(np.int64)


@kernel
@no_type_check
def _add_one(address):  # pragma: no cover
    singles(address, 1)[0] += np.float32(1)


@kernel
@no_type_check
def _is_small(address):  # pragma: no cover
    return singles(address, 1)[0] < 10


@kernel
@no_type_check
def _refuses_once(address):  # pragma: no cover
    seen = integers(address, 1)
    seen[0] += 1
    return seen[0] != 1


@inner
@no_type_check
def _complain(worker, workers, address):  # pragma: no cover
    if singles(address, 1)[0] > 5:
        raise ValueError("more than five")


@sharing_kernel
@no_type_check
def _has_few(address, workers):  # pragma: no cover
    share(_complain, workers, (address,))


@kernel
@no_type_check
def _takes_anything(number):  # pragma: no cover
    pass


def record(tape: Tape, called: Callable[..., Any], *args: Any) -> None:
    """Has a tape note a call, which is made, too."""
    recording.tape = tape
    try:
        called(*args)
    finally:
        recording.tape = None


@pytest.fixture
def number() -> np.ndarray:
    return np.zeros(1, np.float32)


@settings(deadline=None)
@given(INTS, FLOATS, SINGLES, st.booleans(), INTS, FLOATS, st.booleans(), st.integers(0, 2**64 - 1))
def test_every_kind_of_argument_arrives(
    whole: int,
    real: float,
    single: float,
    yes: bool,
    rows: int,
    scale: float,
    turned: bool,
    unsigned: int,
) -> None:
    noted, numbers = np.zeros(NUMBERS, np.int64), np.arange(20, dtype=np.int16).reshape(4, 5)
    args = whole, real, np.float32(single), yes, Sizes(rows, scale, turned), None
    tape = Tape()
    rest = numbers[:, 1:4], np.uint64(unsigned), noted.ctypes.data
    record(tape, _write_down, *args, *rest)
    from_python = noted.copy()
    assert from_python[0] == whole and from_python[4] == rows and from_python[10] == 8
    noted[:] = 0
    tape.replay()
    assert np.array_equal(noted, from_python)


def test_calls_are_made_in_order_between_others(number: np.ndarray) -> None:
    tape, seen = Tape(), []
    for _ in range(3):
        record(tape, _add_one, number.ctypes.data)
        record(tape, _add_one, number.ctypes.data)
        tape.add(lambda: seen.append(float(number[0])), ())
    assert len(tape) == 9
    number[:] = 10
    tape.replay()
    tape.replay()
    assert seen == [12, 14, 16, 18, 20, 22]


def test_a_call_that_is_noted_later_is_made(number: np.ndarray) -> None:
    tape = Tape()
    record(tape, _add_one, number.ctypes.data)
    tape.replay()
    record(tape, _add_one, number.ctypes.data)
    tape.replay()
    assert number[0] == 5


@pytest.mark.parametrize(
    "called, limit, error",
    [(_is_small, 10, (IndexError, "_is_small")), (_has_few, 5, (ValueError, "more than five"))],
    ids=["refused", "raised"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_goes_wrong_ends_the_calls_with_its_error(
    called: Callable[..., Any],
    limit: int,
    error: tuple[type[Exception], str],
    workers: int,
    number: np.ndarray,
) -> None:
    tape, args = Tape(), (workers,) if called is _has_few else ()
    record(tape, _add_one, number.ctypes.data)
    record(tape, called, number.ctypes.data, *args)
    record(tape, _add_one, number.ctypes.data)
    number[:] = limit
    with pytest.raises(error[0], match=error[1]):
        tape.replay()
    assert number[0] == limit + 1, "what was called before is not called again"
    number[:] = 0
    tape.replay()
    assert number[0] == 2


def test_a_kernel_that_refuses_only_once_is_no_error(number: np.ndarray) -> None:
    tape, seen = Tape(), np.ones(1, np.int64)
    record(tape, _add_one, number.ctypes.data)
    record(tape, _refuses_once, seen.ctypes.data)
    record(tape, _add_one, number.ctypes.data)
    number[:], seen[:] = 0, 0
    tape.replay()
    assert number[0] == seen[0] == 2


def test_kernels_have_one_entry_each(number: np.ndarray) -> None:
    def replay() -> None:
        tape = Tape()
        for called in (_add_one, _is_small, _add_one):
            record(tape, called, number.ctypes.data)
        tape.replay()

    replay()
    libraries = len(kernel_runs._LIBRARIES)
    replay()
    assert len(kernel_runs._LIBRARIES) == libraries


def test_what_is_no_number_is_an_error() -> None:
    tape = Tape()
    record(tape, _takes_anything, 1j)
    with pytest.raises(TypeError, match="1j, which numba has as complex128: kernels get numbers"):
        tape.replay()


def test_other_functions_are_called_as_they_are() -> None:
    """Without numba there is nothing else."""
    tape, seen = Tape(), list[int]()
    for number in (1, 2):
        tape.add(seen.append, (number,))
    tape.replay()
    assert seen == [1, 2]
