"""Every kernel test once per device, CUDA among them where it is asked for."""

import pytest
import torch

from hybridrt.kernels.backend import (
    AttentionBackend,
    StateBackend,
    choose_attention_backend,
    choose_state_backend,
)


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
