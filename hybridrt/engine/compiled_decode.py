"""A decode step through torch.compile: one graph for each size, made when it is first wanted."""

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from shutil import which

import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.engine.static_decode import DecodeStep
from hybridrt.kernels.backend import triton_runs


def compiled(step: DecodeStep, sizes: Sequence[int]) -> DecodeStep:
    """The same step in the compiler's code."""
    graph = torch.compile(step, fullgraph=True, dynamic=False)
    ready = set[int]()

    def run(batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        if batch.num_rows in ready:
            return graph(batch)
        # torch takes more shapes than it has a limit for, which is 8, for a mistake.
        config = torch._dynamo.config
        with config.patch(recompile_limit=max(config.recompile_limit, len(sizes))):
            logits = graph(batch)
        ready.add(batch.num_rows)
        return logits

    return run


def check_can_compile(device: torch.device, quantization: str | None) -> None:
    """Refuses what can't be compiled here.

    Raises:
        ValueError: a compiler, a header or a package is missing, or weights are quantised.
    """
    if quantization is not None:
        raise ValueError(
            f"compile=True with quantization={quantization!r}: compiled code would write every "
            f"weight out in full at every step; give one of the two"
        )
    if device.type == "cuda" and not triton_runs(device):
        raise ValueError("compile=True on a CUDA device needs the package triton; install it")
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if which(compiler) is None:
        raise ValueError(
            f"compile=True needs a C++ compiler, and there is no {compiler!r}: install it, or "
            f"name another one in the environment's CXX"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise ValueError(
            f"compile=True needs Python's headers, and there is no {str(header)!r}: install "
            f"them (python3-dev in Debian)"
        )
