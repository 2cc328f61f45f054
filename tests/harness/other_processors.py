"""Tests run in a process of their own, in which the processor lacks some instructions."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_without(what: str, widest: str, tests: Iterable[str], kernels: Path) -> None:
    """Runs `tests` of this suite with the plugin `tests.harness.without_<what>`.

    All is compiled anew, into the folder `kernels`: on disk numba tells processors apart by what
    they are, and not by what they are made to be. `widest` is what oneDNN may use, by its name.
    """
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(kernels),
        "ONEDNN_MAX_CPU_ISA": widest,
        "PYTHONPATH": str(ROOT),
    }
    options = ("-p", f"tests.harness.without_{what}", "-p", "no:cacheprovider", "-q", "-x")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout + done.stderr
