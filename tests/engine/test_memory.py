"""What the C library does with memory that a step gave back."""

import os
import platform
import subprocess
import sys

import pytest

from hybridrt.engine.memory import SETTINGS

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
