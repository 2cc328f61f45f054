"""Which implementation of an operation runs: one function a kind, asked once per layer."""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor
from torch.compiler import is_compiling

StateBackend = Literal["reference", "numba", "mamba_ssm"]
"""Who computes convolutions and scans: plain torch, numba (CPU), mamba-ssm (CUDA)."""

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


def choose_state_backend(requested: str, device: torch.device) -> StateBackend:
    """The backend for layers of the kind `state` on this device.

    `"auto"` is mamba-ssm with causal-conv1d on CUDA where both are installed, numba
    on a CPU, and plain torch everywhere else.

    Raises:
        ValueError: the one asked for can't run here.
    """
    usable: list[StateBackend] = ["reference"]
    if device.type == "cpu" and _installed("numba"):
        usable.append("numba")
    if device.type == "cuda" and _installed("mamba_ssm", "causal_conv1d"):
        usable.append("mamba_ssm")
    if requested == "auto":
        return usable[-1]
    return usable[_index("state_backend", requested, usable, device)]


def choose_attention_backend(requested: str, device: torch.device) -> AttentionBackend:
    """The backend for attention and MLA on this device.

    `"auto"` is numba on a CPU, and plain torch everywhere else.

    Raises:
        ValueError: the one asked for can't run here.
    """
    usable: list[AttentionBackend] = ["reference"]
    if device.type == "cpu" and _installed("numba"):
        usable.append("numba")
    if requested == "auto":
        return usable[-1]
    return usable[_index("attention_backend", requested, usable, device)]


def _index(option: str, requested: str, usable: Sequence[str], device: torch.device) -> int:
    if requested not in usable:
        raise ValueError(
            f"{option}={requested!r} can't run on device {str(device)!r}; usable: {usable}"
        )
    return usable.index(requested)
