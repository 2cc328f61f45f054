"""What Triton's kernels give is told by the numbers that they are given, too."""

from importlib import import_module
from inspect import signature
from typing import Any

import pytest
import torch

from tests.harness.arguments import assert_strides_change_nothing
from tests.kernels import test_arguments as cases
from tests.kernels.triton.conftest import IN_INTERPRETER, ONE_DTYPE_HERE

Place = tuple[str, torch.dtype]

MODULES = {
    **dict.fromkeys(("rms_norm", "rms_norm_three", "add_rms_norm"), "rms_norm"),
    **dict.fromkeys(("rotate", "rotate_normed"), "rotate"),
    **dict.fromkeys(("add", "add_gated", "gated", "gated_by", "sigmoid_gated"), "gated"),
    "rotate_and_norm": "rotate_and_norm",
    "gated_rms_norm": "gated_rms_norm",
    "route": "route",
    "scan_inputs": "scan_inputs",
    "delta_inputs": "delta_inputs",
    "kda_inputs": "kda_inputs",
    "likeliest": "sample",
}
EXPERTS = {"of prompts": ("moe", "moe_experts"), "of few tokens": ("few_experts", "few_experts")}
WITH_CACHE = {
    "attention": "paged_attention",
    "attention, wide window, small values, sinks": "paged_attention",
    "MLA": "mla_attention",
    "Mamba-1": "selective_scan",
    "Mamba-2": "ssd",
    "short convolution": "causal_conv1d",
    "gated delta net": "gated_delta_rule",
    "KDA": "gated_delta_rule",
}
"""Layers, and which of their kernels are tried."""


def _kernel(module: str, name: str) -> Any:
    return getattr(import_module(f"hybridrt.kernels.triton.{module}"), name)


@ONE_DTYPE_HERE
@pytest.mark.parametrize("name", MODULES)
def test_a_kernel_without_a_cache(name: str, place: Place, put_in: Any) -> None:
    put_in(cases, name, _kernel(MODULES[name], name))
    for case, (run, args) in cases.small_kernels(5, place[1]).items():
        if case.split(" ")[0] == name:
            assert_strides_change_nothing(run, [arg.to(place[0]) for arg in args])


@ONE_DTYPE_HERE
@pytest.mark.parametrize("kernel", EXPERTS.values(), ids=EXPERTS)
@pytest.mark.parametrize("tokens", [1, 5])
def test_experts(kernel: tuple[str, str], tokens: int, place: Place, put_in: Any) -> None:
    put_in(cases, "stacked_moe_experts", _kernel(*kernel))
    run, args = cases.small_kernels(tokens, place[1])["experts"]
    assert_strides_change_nothing(run, [arg.to(place[0]) for arg in args])


@IN_INTERPRETER
@pytest.mark.parametrize("name", WITH_CACHE)
def test_a_kernel_with_a_cache(name: str, place: Place) -> None:
    kernel = _kernel(WITH_CACHE[name], WITH_CACHE[name])
    taken = signature(kernel).parameters.keys()
    with torch.inference_mode():
        calls = [call for call in cases.calls_of(name, place[1]) if call[0] == WITH_CACHE[name]]
        assert calls
        for contract, args, caches in calls:
            own = {key: arg for key, arg in args.items() if key in taken}
            cases.assert_strides_of_a_call_change_nothing(kernel, (contract, own, caches))
