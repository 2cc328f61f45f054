"""Which implementation of an operation runs: one function a kind, asked once per layer."""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

StateBackend = Literal["reference", "numba", "triton", "mamba_ssm"]
"""Who computes convolutions and scans: plain torch, numba (CPU), Triton or mamba-ssm (CUDA)."""

AttentionBackend = Literal["reference", "numba", "triton"]
"""Who computes attention and MLA over pages: plain torch, numba (CPU), triton (CUDA)."""


_REAL = (Tensor, nn.Parameter)


def has_numba(*tensors: Tensor) -> bool:
    """Whether numba kernels can have these: they lie in the CPU's memory, and nobody traces.

    Tensors of other classes may have no memory at all, as those by which shapes are tried.
    """
    for tensor in tensors:
        if type(tensor) not in _REAL or not tensor.is_cpu:
            return False
    return not is_compiling() and _installed("numba")


def numba_takes(*tensors: Tensor) -> bool:
    """Whether numba kernels of bfloat16 can have all of these."""
    for tensor in tensors:
        if tensor.dtype is not torch.bfloat16:
            return False
    return has_numba(*tensors)


@cache
def _installed(*packages: str) -> bool:
    return all(find_spec(package) is not None for package in packages)


def triton_runs(device: torch.device) -> bool:
    """Whether our Triton kernels can run on this device."""
    return device.type == "cuda" and _installed("triton")


def triton_takes(tensor: Tensor) -> bool:
    """Whether a Triton kernel can have what a compiler would put into a kernel of its own.

    That is for small operations, which a compiler joins with what stands beside them.
    """
    return triton_runs(tensor.device) and not is_compiling()


def choose_state_backend(requested: str, device: torch.device) -> StateBackend:
    """The backend for layers of the kind `state` on this device.

    `"auto"` is Triton on CUDA, numba on a CPU, and plain torch everywhere else. `"mamba_ssm"`
    takes prompts to mamba-ssm's and causal-conv1d's kernels, and decodes to Triton's.

    Raises:
        ValueError: the one asked for can't run here.
    """
    usable: list[StateBackend] = ["reference"]
    if device.type == "cpu" and _installed("numba"):
        usable.append("numba")
    if triton_runs(device) and _installed("mamba_ssm", "causal_conv1d"):
        usable.append("mamba_ssm")
    if triton_runs(device):
        usable.append("triton")
    if requested == "auto":
        return usable[-1]
    return usable[_index("state_backend", requested, usable, device)]


def choose_attention_backend(requested: str, device: torch.device) -> AttentionBackend:
    """The backend for attention and MLA on this device.

    `"auto"` is Triton on CUDA, numba on a CPU, and plain torch everywhere else.

    Raises:
        ValueError: the one asked for can't run here.
    """
    usable: list[AttentionBackend] = ["reference"]
    if device.type == "cpu" and _installed("numba"):
        usable.append("numba")
    if triton_runs(device):
        usable.append("triton")
    if requested == "auto":
        return usable[-1]
    return usable[_index("attention_backend", requested, usable, device)]


def _index(option: str, requested: str, usable: Sequence[str], device: torch.device) -> int:
    if requested not in usable:
        raise ValueError(
            f"{option}={requested!r} can't run on device {str(device)!r}; usable: {usable}"
        )
    return usable.index(requested)
