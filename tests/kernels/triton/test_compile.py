"""Every kernel compiles for an H100 in bfloat16, on a machine without one.

Since its inputs have no values, this shows too that no wrapper asks the device for any: a decode
step can be captured in a graph.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = (
    *("write_pages", "attention, int8", "latents", "convolution", "scan", "ssd"),
    *("delta rule", "delta rule, a decay a channel", "norms", "gated norms", "gates", "rotations"),
    *("inputs", "one row", "experts, few", "experts, many", "experts, spread", "route", "sample"),
)
"""One of each kernel, or of each of its forms. The script does more, in a minute or two."""


def test_every_kernel_compiles() -> None:
    """In a process of its own: in this one triton is the interpreter."""
    pytest.importorskip("triton")
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    root = str(Path(__file__).parents[3])
    environment["PYTHONPATH"] = os.pathsep.join([root, environment.get("PYTHONPATH", "")])
    command = [sys.executable, str(script), *CASES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
