"""Which implementation of an operation runs: one function a kind, asked once per layer."""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor
from torch.compiler import is_compiling

StateBackend = Literal["reference", "numba", "triton", "mamba_ssm"]
"""Who computes convolutions and scans: plain torch, numba (CPU), Triton or mamba-ssm (CUDA)."""

AttentionBackend = Literal["reference", "numba", "triton"]
"""Who computes attention and MLA over pages: plain torch, numba (CPU), triton (CUDA)."""


def has_numba(tensor: Tensor) -> bool:
    """Whether numba kernels can have what lies where this does: in the CPU's memory."""
    return tensor.is_cpu and not is_compiling() and _installed("numba")


def numba_takes(*tensors: Tensor) -> bool:
    """Whether numba kernels of bfloat16 can have all of these."""
    return all(t.dtype is torch.bfloat16 for t in tensors) and has_numba(tensors[0])


@cache
def _installed(*packages: str) -> bool:
    return all(find_spec(package) is not None for package in packages)


TRITON_UNASKED = False
"""Whether Triton kernels run where nobody asked for them.

In Triton's interpreter they are right in float32 and float16, and they compile for an H100;
what they do on a GPU, and in bfloat16, no test has seen so far.
"""


def triton_runs(device: torch.device) -> bool:
    """Whether our Triton kernels can run on this device."""
    return device.type == "cuda" and _installed("triton")


def prefers_triton(device: torch.device) -> bool:
    """Whether operations without a choice of their own take Triton on this device."""
    return TRITON_UNASKED and triton_runs(device)


def choose_state_backend(requested: str, device: torch.device) -> StateBackend:
    """The backend for layers of the kind `state` on this device.

    `"auto"` is mamba-ssm with causal-conv1d on CUDA where both are installed, numba on a
    CPU, and plain torch everywhere else; see `TRITON_UNASKED`.

    Raises:
        ValueError: the one asked for can't run here.
    """
    usable: list[StateBackend] = ["reference"]
    if device.type == "cpu" and _installed("numba"):
        usable.append("numba")
    if triton_runs(device):
        usable.insert(len(usable) * TRITON_UNASKED, "triton")  # the last one is taken unasked
    if device.type == "cuda" and _installed("mamba_ssm", "causal_conv1d"):
        usable.append("mamba_ssm")
    if requested == "auto":
        return usable[-1]
    return usable[_index("state_backend", requested, usable, device)]


def choose_attention_backend(requested: str, device: torch.device) -> AttentionBackend:
    """The backend for attention and MLA on this device.

    `"auto"` is numba on a CPU, and plain torch everywhere else; see `TRITON_UNASKED`.

    Raises:
        ValueError: the one asked for can't run here.
    """
    usable: list[AttentionBackend] = ["reference"]
    if device.type == "cpu" and _installed("numba"):
        usable.append("numba")
    if triton_runs(device):
        usable.insert(len(usable) * TRITON_UNASKED, "triton")
    if requested == "auto":
        return usable[-1]
    return usable[_index("attention_backend", requested, usable, device)]


def _index(option: str, requested: str, usable: Sequence[str], device: torch.device) -> int:
    if requested not in usable:
        raise ValueError(
            f"{option}={requested!r} can't run on device {str(device)!r}; usable: {usable}"
        )
    return usable.index(requested)
