"""Every kernel test once per device, CUDA among them where it is asked for."""

import ctypes
import os
from collections.abc import Iterator

import pytest
import torch

from hybridrt.kernels.backend import (
    AttentionBackend,
    StateBackend,
    choose_attention_backend,
    choose_state_backend,
)

_SET_OPTION = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
_PERTURB = -6  # of glibc's `mallopt`
_GIVEN_BACK = 0x80


@pytest.fixture(autouse=True)
def memory_is_written_over() -> Iterator[None]:
    """A kernel that reads what it hasn't written, or has given back, gets nonsense.

    Of all but the smallest pieces, bytes that are given back become `_GIVEN_BACK`, and those that
    are new have the other bits: floats of 3e38, and integers that are no place in anything.
    """
    if _SET_OPTION is not None:
        _SET_OPTION(_PERTURB, _GIVEN_BACK)
    yield
    if _SET_OPTION is not None:
        _SET_OPTION(_PERTURB, 0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


STATE_BACKENDS = [
    ("cpu", "reference"),
    ("cpu", "numba"),
    pytest.param(("cuda", "reference"), marks=pytest.mark.gpu),
    pytest.param(("cuda", "triton"), marks=pytest.mark.gpu),
    pytest.param(("cuda", "mamba_ssm"), marks=pytest.mark.gpu),
]


@pytest.fixture(params=STATE_BACKENDS, ids=lambda pair: "-".join(pair))
def device_and_backend(request: pytest.FixtureRequest) -> tuple[str, StateBackend]:
    """Every backend of convolutions and scans, on the device it is for."""
    device, backend = request.param
    if backend == "triton":
        pytest.importorskip("triton")
    if backend == "mamba_ssm":
        pytest.importorskip("mamba_ssm")
        pytest.importorskip("causal_conv1d")
    return device, choose_state_backend(backend, torch.device(device))


ATTENTION_BACKENDS = [
    ("cpu", "reference"),
    ("cpu", "numba"),
    pytest.param(("cuda", "reference"), marks=pytest.mark.gpu),
]


@pytest.fixture(params=ATTENTION_BACKENDS, ids=lambda pair: "-".join(pair))
def attends(request: pytest.FixtureRequest) -> tuple[str, AttentionBackend]:
    """Every device and backend of attention and MLA."""
    device, backend = request.param
    return device, choose_attention_backend(backend, torch.device(device))
