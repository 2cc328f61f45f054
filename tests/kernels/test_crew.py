"""Threads that stand by while calls are made: each worker once, of all work, in its order."""

import os
import subprocess
import sys
from pathlib import Path
from typing import no_type_check

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrt.kernels.cpu import kernel_runs
from hybridrt.kernels.cpu.bfloat16 import integers
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.share import share, sharing_kernel
from hybridrt.kernels.tape import Tape
from tests.harness.properties import bounded
from tests.kernels.test_kernel_runs import record

MOST = 40


@inner
@no_type_check
def _count(worker, workers, counts, number, rounds):  # pragma: no cover  (compiled)
    own = integers(counts, 2 * MOST)
    # Who comes before the work of the call before is done, finds another number.
    own[worker] += 1 if own[worker] == number else 1000
    slow = np.float64(worker)
    for i in range(rounds * (worker % 3)):
        slow = np.sqrt(slow + i)
    own[MOST + worker] = np.int64(slow)  # or the loop would be left out


@sharing_kernel
@no_type_check
def _count_workers(workers, counts, number, rounds):  # pragma: no cover
    share(_count, workers, (counts, number, rounds))
    # Those who had no part in it: the next call is for other workers.
    own = integers(counts, MOST)
    for worker in range(max(workers, 1), MOST):
        own[worker] += 1


def _tape(workers: list[int], counts: np.ndarray, rounds: int) -> Tape:
    tape = Tape()
    for number, some in enumerate(workers):
        record(tape, _count_workers, some, counts.ctypes.data, number, rounds)
    return tape


@bounded(20)
@given(
    workers=st.lists(st.integers(1, MOST), min_size=1, max_size=300),
    rounds=st.sampled_from([0, 0, 1000]),
    threads=st.sampled_from([1, 2, 2, 5]),
)
def test_every_worker_comes_once_and_none_too_early(
    workers: list[int], rounds: int, threads: int
) -> None:
    counts = np.zeros(2 * MOST, np.int64)
    tape = _tape(workers, counts, rounds)
    assert counts[:MOST].tolist() == [len(workers)] * MOST
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba, "get_num_threads", lambda: threads)
        for _ in range(3):
            counts[:] = 0
            tape.replay()
            assert counts[:MOST].tolist() == [len(workers)] * MOST


def test_few_calls_are_made_without_a_crew(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, made = np.zeros(2 * MOST, np.int64), []
    together = kernel_runs._make_calls

    def make(threads: int, *args: int) -> int:
        made.append(threads)
        return together(threads, *args)

    monkeypatch.setattr(kernel_runs, "_make_calls", make)
    monkeypatch.setattr(numba, "get_num_threads", lambda: 2)
    _tape([2] * (kernel_runs.FEWEST - 1), counts, 0).replay()
    _tape([2] * kernel_runs.FEWEST, counts, 0).replay()
    assert made == [1, 2]


OF_ITS_OWN = """
import numpy as np
from tests.kernels.test_crew import MOST, _tape
counts = np.zeros(2 * MOST, np.int64)
tape = _tape([2] * 400, counts, 0)
for _ in range(20):
    counts[:] = 0
    tape.replay()
    assert counts[:MOST].tolist() == [400] * MOST
"""


def test_more_threads_than_cores_get_done() -> None:
    """Those who wait let the others run; and the first thread does alone what nobody takes."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "NUMBA_NUM_THREADS": "8"}
    command = [sys.executable, "-c", OF_ITS_OWN]
    running = [subprocess.Popen(command, env=environment, cwd=root) for _ in range(3)]
    assert [process.wait(timeout=300) for process in running] == [0, 0, 0]
