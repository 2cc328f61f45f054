"""What the C library does with memory that a step gave back, and when a pool is cleared."""

import mmap
import os
import platform
import resource
import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor

from hybridrt.engine import engine, memory
from hybridrt.engine.memory import CLEARED, SETTINGS, clear_ahead
from tests.cache.stand_ins import Group, pool_of
from tests.harness.engines import open_llm


def clears_ahead() -> bool:
    version = tuple(int(part) for part in platform.release().split(".")[:2] if part.isdigit())
    return sys.platform == "linux" and version >= (5, 14)


COUNT_FAULTS = """
import resource, torch
from hybridrt.engine.memory import keep_freed_memory

kept, faults = keep_freed_memory(), []
for _ in range(60):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(50 * 2**20, dtype=torch.uint8)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(kept, max(faults[-20:]))
"""


def count_faults(**settings: str) -> tuple[bool, int]:
    """Whether memory is kept, and in how many new pages 50 MiB come at most, once it has settled.

    What is small and stays may stand right behind a large piece. Then the piece is too short for
    the next one, which begins with a page of its own, until there is room enough (up to 16 times).
    """
    script = [sys.executable, "-c", COUNT_FAULTS]
    mine = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run(script, env=mine | settings, capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library isn't glibc")
def test_memory_is_cleared_by_the_system_once() -> None:
    kept, faults = count_faults()
    assert kept and faults < 100  # of 12,800, or of some 500 where the system joins pages


def test_settings_of_the_environment_stay() -> None:
    assert not count_faults(MALLOC_TRIM_THRESHOLD_="131072")[0]


def first_writes(pool: Tensor) -> int:
    """In how many new pages a pool comes where each is written."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pool.view(-1)[:: resource.getpagesize()].add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not clears_ahead(), reason="Linux clears pages ahead from 5.14 on")
def test_a_pool_is_cleared_before_it_is_written() -> None:
    pool = pool_of([Group(2**16)], 512, poison=False).bytes
    pool[3].fill_(7)
    pool[200, :5] = 8
    thread = clear_ahead(pool)
    assert thread is not None
    thread.join()
    assert first_writes(pool[4:132]) < 100  # of 2,048
    assert (pool[3] == 7).all() and pool[200, :6].tolist() == [8, 8, 8, 8, 8, 0]


def test_of_a_large_pool_what_is_cleared_is_bounded() -> None:
    pool = pool_of([Group(2**20)], 1024, poison=False).bytes
    assert pool.nbytes > 2 * CLEARED
    thread = clear_ahead(pool)
    if thread is not None:
        thread.join()
    behind = pool.view(-1)[CLEARED + 2**21 :][: 2**23]
    assert first_writes(behind) > 3  # large pages, if the system joins them


def test_elsewhere_nothing_is_cleared_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert clear_ahead(torch.zeros(2, 8, dtype=torch.uint8)) is None


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is cleared elsewhere")
def test_what_the_system_refuses_to_clear_is_left() -> None:
    asked: list[tuple[int, int]] = []

    def refuse(start: int, size: int, advice: int) -> int:
        asked.append((start, advice))
        return -1

    pool = pool_of([Group(2**20)], 8, poison=False).bytes
    thread = threading.Thread(target=memory._clear, args=(pool, refuse))
    thread.start()
    thread.join()
    advices = mmap.MADV_HUGEPAGE, memory._POPULATE_WRITE
    assert asked == [(pool.data_ptr(), advice) for advice in advices]
    for empty in (torch.zeros(0, 0, dtype=torch.uint8), pool[:0]):
        thread = threading.Thread(target=memory._clear, args=(empty, refuse))
        thread.start()
        thread.join()
    assert len(asked) == 2


def test_an_engine_clears_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[Tensor] = []
    monkeypatch.setattr(engine, "clear_ahead", cleared.append)
    llm = open_llm("jamba-odd-sizes")
    assert [pool.data_ptr() for pool in cleared] == [llm.engine.pool.bytes.data_ptr()]
