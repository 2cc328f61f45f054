"""What a kernel gives is told by the numbers that it is given, not by how they lie in memory.

Nor by their dtype, if it doesn't refuse that.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from inspect import getmembers, isfunction
from math import inf
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
from torch import Tensor

import hybridrt.kernels
from hybridrt.kernels.add import add
from hybridrt.kernels.delta_inputs import delta_inputs
from hybridrt.kernels.gated import add_gated, gated, gated_by, sigmoid_gated
from hybridrt.kernels.gated_rms_norm import gated_rms_norm
from hybridrt.kernels.kda_inputs import kda_inputs
from hybridrt.kernels.linear import BlockedWeight, gated_linear, linear
from hybridrt.kernels.moe import stacked_moe_experts
from hybridrt.kernels.op import observed_calls
from hybridrt.kernels.quantised_linear import QuantisedWeight
from hybridrt.kernels.reference.route import Routing
from hybridrt.kernels.relu2_moe import stacked_relu2_experts
from hybridrt.kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_three
from hybridrt.kernels.rotate import rotate, rotate_and_norm, rotate_normed
from hybridrt.kernels.route import route
from hybridrt.kernels.sample import likeliest, sample
from hybridrt.kernels.scan_inputs import scan_inputs
from hybridrt.layers.linear import Linear
from tests.harness.arguments import (
    assert_alike,
    assert_dtypes_are_seen,
    assert_strides_change_nothing,
    other_ways,
    tensors_of,
)
from tests.harness.bench import Bench, Setting, random_tokens
from tests.harness.layer_rows import BY_REASON


def _normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def small_kernels(
    tokens: int, dtype: torch.dtype
) -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """Kernels without a cache, and what they are given."""

    def normal(*shape: int, seed: int = 0) -> Tensor:
        return _normal(*shape, seed=seed, dtype=dtype)

    wide, other, weight = normal(tokens, 256), normal(tokens, 256, seed=1), normal(256, seed=2)
    heads, head_weight = normal(tokens, 4, 64), normal(64, seed=3)
    table, positions = _normal(50, 2, 16), torch.arange(tokens) * 7 % 50
    of_heads, more = _normal(8), _normal(8, seed=1)
    routing = Routing(top_k=3, scores="softmax", normed=True, eps=0.0, scale=1.0)
    ids, shares = torch.arange(2 * tokens).view(tokens, 2) % 8, _normal(tokens, 2).sigmoid()
    experts = normal(8, 128, 64), normal(8, 64, 64, seed=1)
    unit = torch.linspace(0.1, 0.9, tokens, dtype=torch.float64)
    return {
        "rms_norm": (partial(rms_norm, eps=1e-5), (wide, weight)),
        "rms_norm of heads": (partial(rms_norm, eps=1e-5), (heads, head_weight)),
        "rms_norm_three": (
            lambda a, b, c, u, v, w: rms_norm_three((a, b, c), (u, v, w), 1e-5),
            (wide, other, heads[:, 0], weight, weight.flip(0), head_weight),
        ),
        "add_rms_norm": (partial(add_rms_norm, eps=1e-5), (wide, other, weight)),
        "gated_rms_norm": (
            lambda *args: gated_rms_norm(*args, 1e-5, 1, True, "silu"),
            (wide, other, weight),
        ),
        "gated_rms_norm in groups": (
            lambda *args: gated_rms_norm(*args, 1e-5, 4, False, "sigmoid"),
            (wide, other, weight),
        ),
        "gated_rms_norm of heads": (
            lambda *args: gated_rms_norm(*args, 1e-5, 1, True, "silu"),
            (heads, other.view_as(heads), head_weight),
        ),
        "rotate": (rotate, (heads, table, positions)),
        "rotate neighbours": (partial(rotate, interleaved=True), (heads, table, positions)),
        "rotate_normed": (
            lambda q, k, u, v, *where: rotate_normed(q, k, u, v, 1e-5, 0.0, *where),
            (heads, heads[:, :2], head_weight, head_weight.flip(0), table, positions),
        ),
        "rotate_and_norm": (
            lambda q, k, x, w, *where: rotate_and_norm(q, k, x, w, 1e-5, 0.0, *where),
            (heads, heads[:, :1], wide, weight, table, positions),
        ),
        "add": (add, (wide, other)),
        "gated": (partial(gated, gating="silu"), (wide,)),
        "gated_by": (gated_by, (wide, other)),
        "sigmoid_gated": (sigmoid_gated, (wide, other)),
        "add_gated": (add_gated, (wide, other, wide[:, :1])),
        "route": (partial(route, routing=routing), (wide, normal(8, 256, seed=4) / 16, of_heads)),
        "scan_inputs": (
            partial(scan_inputs, limits=(0.0, inf)),
            (wide[:, :8], of_heads, _normal(8, 16)),
        ),
        "delta_inputs": (
            lambda *args: delta_inputs(*args, 4, 1.0),
            (wide, other[:, :8], wide[:, :8], of_heads, more),
        ),
        "kda_inputs": (
            lambda *args: kda_inputs(*args, None),
            (wide, other, wide, other[:, :8], of_heads, _normal(256)),
        ),
        "experts": (
            stacked_moe_experts,
            (heads[:, 0], *experts, ids, shares, normal(8, 128, seed=2), normal(8, 64, seed=3)),
        ),
        "experts of squares": (
            stacked_relu2_experts,
            (heads[:, 0], experts[0][:, :64], experts[1], ids, shares),
        ),
        "likeliest": (likeliest, (wide.float(),)),
        "sample": (sample, (wide.float(), unit, 0 * unit, unit)),
    }


@pytest.mark.parametrize("name", small_kernels(1, torch.float32))
@pytest.mark.parametrize("tokens", [3, 200])
def test_a_kernel_without_a_cache(name: str, tokens: int, dtype: torch.dtype, device: str) -> None:
    run, args = small_kernels(tokens, dtype)[name]
    with torch.inference_mode():
        assert_strides_change_nothing(run, [arg.to(device) for arg in args])
        assert_dtypes_are_seen(run, [arg.to(device) for arg in args])


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize(
    "product", [linear, partial(gated_linear, gating="silu")], ids=["plain", "gated"]
)
@pytest.mark.parametrize("tokens", [3, 24, 200])
def test_a_product_with_a_packed_weight(
    tokens: int,
    product: Callable[[Tensor, Tensor | QuantisedWeight | BlockedWeight, Tensor], Tensor],
    bits: Any,
    dtype: torch.dtype,
) -> None:
    outputs = 1024  # so that float32 is packed, too
    layer = Linear(256, outputs)
    layer.weight.data = _normal(outputs, 256, dtype=dtype)
    layer.pack(bits)
    x, bias = _normal(tokens, 256, dtype=dtype), _normal(outputs, seed=1, dtype=dtype)
    with torch.inference_mode():

        def run(x: Tensor, bias: Tensor) -> Tensor:
            return product(x, layer.held, bias)

        assert_strides_change_nothing(run, (x, bias))
        assert_dtypes_are_seen(run, (x, bias))


LAYERS = [
    "attention",
    "attention, wide window, small values, sinks",
    "gated attention to selected blocks",
    "attention to blocks by their best",
    "MLA",
    "profiles of distances, window",
    "sparse MLA",
    "Mamba-1",
    "Mamba-1 in heads",
    "Mamba-2",
    "short convolution",
    "RG-LRU",
    "gated delta net",
    "KDA",
    "mLSTM",
    "RWKV",
]
"""Whose kernels are all that have a cache, but for what layers with several caches call."""


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


Call = tuple[str, dict[str, Any], set[str]]
"""The contract's name, its arguments, and which of them are caches."""


def calls_of(name: str, dtype: torch.dtype) -> list[Call]:
    """What a layer calls in a decode row beside a chunk."""
    setting = Setting(16, 16, state_backend="numba", attention_backend="numba")
    with _default_dtype(dtype):
        bench = Bench(BY_REASON[name], setting)
    x, calls = random_tokens(40, seed=0).to(dtype), list[Call]()
    pool = bench.pool.untyped_storage().data_ptr()

    def note(contract: str, args: Mapping[str, Any]) -> None:
        tensors = {key: arg for key, arg in args.items() if isinstance(arg, Tensor)}
        caches = {k for k, arg in tensors.items() if arg.untyped_storage().data_ptr() == pool}
        as_they_were = {key: arg.clone() for key, arg in tensors.items()}
        calls.append((contract, {**args, **as_they_were}, caches))

    bench.step([("old", x[:7])])
    with observed_calls(note):
        bench.step([("old", x[7:8]), ("new", x[8:])])
    return calls


def assert_strides_of_a_call_change_nothing(run: Callable[..., Any], call: Call) -> None:
    """But for those of caches, and of page ids, which the engine has side by side."""
    contract, args, caches = call
    expected = _results(run, args, caches)
    for key, arg in args.items():
        if not isinstance(arg, Tensor) or key in caches or arg.dtype == torch.int64:
            continue
        for way, laid in other_ways(arg).items():
            found = _results(run, {**args, key: laid}, caches)
            for one, right in zip(found, expected, strict=True):
                held = ~right.float().isnan()  # what nobody wrote is poison
                assert_alike(one[held], right[held], f"{contract}: {key} {way}")


def assert_dtypes_of_a_call_are_seen(run: Callable[..., Any], call: Call) -> None:
    """But for those of caches, whose dtypes are the engine's to choose."""
    _, args, caches = call
    names = [key for key, arg in args.items() if isinstance(arg, Tensor) and key not in caches]

    def run_with(*tensors: Tensor) -> Any:
        return _results(run, {**args, **dict(zip(names, tensors, strict=True))}, caches)

    assert_dtypes_are_seen(run_with, [args[name] for name in names])


def _results(run: Callable[..., Any], args: Mapping[str, Any], caches: set[str]) -> list[Tensor]:
    """What a call gives, and what it leaves in caches, which are copies."""
    own = {key: arg.clone() if key in caches else arg for key, arg in args.items()}
    return [*tensors_of(run(**own)), *(own[key] for key in sorted(caches))]


@cache
def _contracts() -> dict[str, Callable[..., Any]]:
    names = (
        f"hybridrt.kernels.{module.name}" for module in iter_modules(hybridrt.kernels.__path__)
    )
    functions = (item for name in names for item in getmembers(import_module(name), isfunction))
    return {name: function for name, function in functions if not name.startswith("_")}


@pytest.mark.parametrize("name", LAYERS)
def test_a_kernel_with_a_cache(name: str, dtype: torch.dtype) -> None:
    with torch.inference_mode():
        calls = calls_of(name, dtype)
        assert calls
        for call in calls:
            assert_strides_of_a_call_change_nothing(_contracts()[call[0]], call)
            assert_dtypes_of_a_call_are_seen(_contracts()[call[0]], call)
