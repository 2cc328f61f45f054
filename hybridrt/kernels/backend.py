"""Which implementation of an operation runs: one function, asked once per layer."""

from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch

StateBackend = Literal["reference", "numba", "triton", "mamba_ssm"]
"""Who computes convolutions and scans: plain torch, numba (CPU), Triton or mamba-ssm (CUDA)."""


@cache
def _installed(*packages: str) -> bool:
    return all(find_spec(package) is not None for package in packages)


def triton_runs(device: torch.device) -> bool:
    """Whether our Triton kernels can run on this device."""
    return device.type == "cuda" and _installed("triton")


def choose_state_backend(requested: str, device: torch.device) -> StateBackend:
    """The backend for layers of the kind `state` on this device.

    `"auto"` is mamba-ssm with causal-conv1d on CUDA where both are installed, else Triton
    there, numba on a CPU, and plain torch everywhere else.

    Raises:
        ValueError: the one asked for can't run here.
    """
    usable = ["reference"]
    if device.type == "cpu" and _installed("numba"):
        usable.append("numba")
    if triton_runs(device):
        usable.append("triton")
    if device.type == "cuda" and _installed("mamba_ssm", "causal_conv1d"):
        usable.append("mamba_ssm")
    if requested == "auto":
        return usable[-1]  # pyright: ignore[reportReturnType]
    if requested not in usable:
        raise ValueError(
            f"state_backend={requested!r} can't run on device {str(device)!r}; usable: {usable}"
        )
    return requested  # pyright: ignore[reportReturnType]
