"""The choice of a backend is one function of the device and of what is installed."""

import pytest
import torch

from hybridrt.kernels import backend
from hybridrt.kernels.backend import choose_attention_backend, choose_state_backend

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def _pretend_installed(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(backend, "_installed", lambda *wanted: set(wanted) <= set(packages))


@pytest.mark.parametrize(
    ("device", "installed", "chosen"),
    [
        (CPU, ["numba"], "numba"),
        (CPU, [], "reference"),
        (CPU, ["mamba_ssm", "causal_conv1d"], "reference"),
        (CUDA, ["mamba_ssm", "causal_conv1d", "numba"], "reference"),
        (CUDA, ["mamba_ssm", "causal_conv1d", "triton"], "triton"),
        (CUDA, ["causal_conv1d"], "reference"),
        (CUDA, ["triton", "numba"], "triton"),
        (CPU, ["triton"], "reference"),
        (CUDA, [], "reference"),
    ],
    ids=str,
)
def test_auto_takes_the_best_that_runs(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, installed: list[str], chosen: str
) -> None:
    _pretend_installed(monkeypatch, *installed)
    assert choose_state_backend("auto", device) == chosen


@pytest.mark.parametrize(
    ("device", "installed", "chosen"),
    [
        (CPU, ["numba", "triton"], "numba"),
        (CPU, ["triton"], "reference"),
        (CUDA, ["numba", "triton"], "triton"),
    ],
    ids=str,
)
def test_auto_takes_the_best_that_attends(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, installed: list[str], chosen: str
) -> None:
    _pretend_installed(monkeypatch, *installed)
    assert choose_attention_backend("auto", device) == chosen


@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_the_reference_runs_everywhere(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    _pretend_installed(monkeypatch, "numba", "triton", "mamba_ssm", "causal_conv1d")
    assert choose_state_backend("reference", device) == "reference"
    assert choose_attention_backend("reference", device) == "reference"


@pytest.mark.parametrize(
    ("name", "device"), [("mamba_ssm", CPU), ("triton", CPU), ("numba", CUDA)], ids=str
)
def test_one_that_cannot_run_is_refused_with_those_that_can(
    monkeypatch: pytest.MonkeyPatch, name: str, device: torch.device
) -> None:
    _pretend_installed(monkeypatch, "numba", "triton", "mamba_ssm", "causal_conv1d")
    with pytest.raises(ValueError, match=rf"state_backend='{name}'.*{device}.*usable: \['ref"):
        choose_state_backend(name, device)


@pytest.mark.parametrize(("name", "device"), [("triton", CPU), ("numba", CUDA)], ids=str)
def test_attention_that_cannot_run_is_refused_with_what_can(
    monkeypatch: pytest.MonkeyPatch, name: str, device: torch.device
) -> None:
    _pretend_installed(monkeypatch, "numba", "triton")
    match = rf"attention_backend='{name}'.*{device}.*usable: \['ref"
    with pytest.raises(ValueError, match=match):
        choose_attention_backend(name, device)
