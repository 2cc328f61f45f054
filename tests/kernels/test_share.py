"""How kernels share out work: every part once, whoever takes it."""

from typing import Any, NamedTuple, no_type_check

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError
from numba.extending import overload

from hybridrt.kernels.cpu.bfloat16 import integers
from hybridrt.kernels.cpu.jit import argument, inner
from hybridrt.kernels.cpu.share import jobs_of, numbers_of, share, share_each, sharing_kernel

SIZES = (0, 1, 2, 7, 512, 1025)


@argument
class Given(NamedTuple):
    """A tuple in the tuple that the work gets."""

    counts: int
    size: int


@inner
@no_type_check
def _take_numbers(worker, workers, given, nothing, more):
    begin, end = numbers_of(worker, workers, given.size)
    counts = integers(given.counts, given.size + 1)
    for i in range(begin, end):
        counts[i] += worker + 1 + (0 if nothing is None else 1000) + more


@sharing_kernel
@no_type_check
def _count_numbers(threads, counts, size, given):
    share(_take_numbers, threads, (given, None, 0))


@inner
@no_type_check
def _take_job(job, counts, size):
    integers(counts, size)[job] += 1


@sharing_kernel
@no_type_check
def _count_jobs(threads, counts, size):
    share_each(_take_job, threads, size, (counts, size))


@inner
@no_type_check
def _fail(worker, workers, whose, counts):
    of = integers(counts, workers)
    of[worker] += 1
    if worker == whose:
        raise ValueError("a worker's own words")


@sharing_kernel
@no_type_check
def _fail_one(threads, whose, counts):
    share(_fail, threads, (whose, counts))
    integers(counts, threads)[0] += 100


def _counts(size: int) -> Any:
    return np.zeros(size + 1, np.int64)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_each_number_and_each_job_is_somebodys(size: int, threads: int) -> None:
    counts = _counts(size)
    _count_numbers(threads, counts.ctypes.data, size, Given(counts.ctypes.data, size))
    assert np.all(counts[:size] >= 1)
    assert np.all(np.diff(counts[:size]) >= 0)  # neighbours
    assert counts[:size].max(initial=0) <= threads
    assert counts[size] == 0
    counts = _counts(size)
    _count_jobs(threads, counts.ctypes.data, size)
    assert np.all(counts[:size] == 1)
    assert counts[size] == 0


@pytest.mark.parametrize("workers", range(1, 9))
@pytest.mark.parametrize("size", SIZES)
def test_shares_are_side_by_side(size: int, workers: int) -> None:
    for of in (jobs_of.py_func, numbers_of.py_func):
        shares = [of(worker, workers, size) for worker in range(workers)]
        assert [share[0] for share in shares] + [size] == [0] + [share[1] for share in shares]


@pytest.mark.parametrize(("threads", "whose"), [(1, 0), (2, 0), (2, 1)])
def test_what_a_worker_raises_is_raised(threads: int, whose: int) -> None:
    """When the others have done their parts; what comes behind isn't done."""
    counts = _counts(threads)
    with pytest.raises(ValueError, match="a worker's own words"):
        _fail_one(threads, whose, counts.ctypes.data)
    assert counts.tolist() == [1] * threads + [0]
    _fail_one(threads, -1, counts.ctypes.data)
    assert counts.tolist() == [102] + [2] * (threads - 1) + [0]


def _overloaded(worker: int, workers: int) -> None: ...


@overload(_overloaded)
@no_type_check
def _of_overloaded(worker, workers):
    return lambda worker, workers: None


def test_only_an_inner_function_is_shared_out() -> None:
    """Of others numba has no code that a thread could be given."""

    @numba.njit
    def run() -> None:
        share(_overloaded, 1, ())

    with pytest.raises(TypingError, match="should be an inner function"):
        run()
