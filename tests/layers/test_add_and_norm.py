"""A sum and its norm at once give what they give apart, and whoever looks at the norm sees it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module
from torch.nn.utils import parametrize

from hybridrt.layers import norm as norms
from hybridrt.layers.norm import (
    BiasedRMSNorm,
    Float32RMSNorm,
    GroupedOffsetRMSNorm,
    LayerNorm,
    OffsetRMSNorm,
    RMSNorm,
    add_and_norm,
)
from hybridrt.models.decoder import DecoderLayer

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZE = 24


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of calls of the one operation."""
    made: list[Any] = []
    operation = norms.add_rms_norm

    def add_rms_norm(*args: Any) -> Any:
        made.append(args)
        return operation(*args)

    monkeypatch.setattr(norms, "add_rms_norm", add_rms_norm)
    return made


def _filled(module: nn.Module, dtype: torch.dtype) -> Any:
    draw = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw).to(dtype)
    return module


def _stream(dtype: torch.dtype, rows: int = 5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(rows)
    x, y = (torch.randn(rows, SIZE, generator=draw).to(dtype) for _ in range(2))
    return x, y


def _check(x: Tensor, y: Tensor, norm: Any, right: Callable[[Tensor], Tensor]) -> None:
    total, normed = add_and_norm(x, y, norm)
    assert torch.equal(total, x + y)
    assert torch.equal(normed, right(x + y))


class _Attention(nn.Linear):
    def forward(self, x: Tensor, batch: Any) -> Tensor:
        return super().forward(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [RMSNorm, OffsetRMSNorm])
@pytest.mark.parametrize("rows", [0, 1, 5, 1500])
def test_a_layer_gives_the_same_bits(
    calls: list[Any], kind: type[RMSNorm], dtype: torch.dtype, rows: int
) -> None:
    parts = (_Attention(SIZE, SIZE), nn.Linear(SIZE, SIZE))
    layer = _filled(DecoderLayer(SIZE, 1e-6, *parts, norm_class=kind), dtype)
    x, batch = _stream(dtype, rows)[0], None
    with torch.inference_mode():
        out = layer.forward(x, batch)
        assert len(calls) == 1
        stream = x + layer.self_attn(layer.input_layernorm(x), batch)
        assert torch.equal(out, stream + layer.mlp(layer.post_attention_layernorm(stream)))


@pytest.mark.parametrize("kind", [RMSNorm, OffsetRMSNorm])
def test_a_float32_stream(calls: list[Any], kind: type[RMSNorm]) -> None:
    norm = _filled(kind(SIZE, 1e-6), torch.bfloat16)
    x, y = _stream(torch.float32)
    for added in (y, y.bfloat16()):
        _check(x, added, norm, norm)
        assert add_and_norm(x, added, norm)[1].dtype == torch.bfloat16
    assert len(calls) == 4


@pytest.mark.parametrize(
    "norm",
    [
        *(BiasedRMSNorm(SIZE, 1e-6), GroupedOffsetRMSNorm(SIZE, 1e-6, 3), LayerNorm(SIZE, 1e-6)),
        *(Float32RMSNorm(SIZE, 1e-6), nn.Identity()),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_other_norms_are_called(calls: list[Any], norm: nn.Module) -> None:
    dtype = torch.float32 if isinstance(norm, Float32RMSNorm) else torch.bfloat16
    _filled(norm, dtype)
    _check(*_stream(torch.bfloat16), norm, norm)
    assert not calls


def test_a_part_for_all_rows_is_added_by_torch(calls: list[Any]) -> None:
    norm = _filled(RMSNorm(SIZE, 1e-6), torch.bfloat16)
    x, y = _stream(torch.bfloat16)
    total = x + y[0]
    added, normed = add_and_norm(x, y[0], norm)
    assert torch.equal(added, total) and torch.equal(normed, norm(total))
    assert not calls


HOOKS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "a hook": lambda norm, hook: norm.register_forward_hook(lambda *args: hook(args[2])),
    "a pre-hook": lambda norm, hook: norm.register_forward_pre_hook(
        lambda module, args: hook(args[0])
    ),
    "a hook of all modules": lambda norm, hook: nn_module.register_module_forward_hook(
        lambda *args: hook(args[2])
    ),
    "a pre-hook of all modules": lambda norm, hook: nn_module.register_module_forward_pre_hook(
        lambda module, args: hook(args[0])
    ),
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_sees_the_call_and_changes_it(calls: list[Any], name: str) -> None:
    norm = _filled(RMSNorm(SIZE, 1e-6), torch.bfloat16)
    x, y = _stream(torch.bfloat16)
    plain, seen = norm(x + y), list[Tensor]()

    def hook(given: Tensor) -> Tensor:
        seen.append(given)
        return torch.zeros_like(given)

    handle = HOOKS[name](norm, hook)
    try:
        total, normed = add_and_norm(x, y, norm)
    finally:
        handle.remove()
    assert torch.equal(total, x + y) and not normed.any()
    assert len(seen) == 1 and torch.equal(seen[0], x + y if "pre-" in name else plain)
    assert not calls
    _check(x, y, norm, norm)
    assert len(calls) == 1


def test_a_forward_that_is_replaced_is_called(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = _filled(RMSNorm(SIZE, 1e-6), torch.bfloat16)
    norm.forward = lambda x: 2 * x
    _check(*_stream(torch.bfloat16), norm, lambda x: 2 * x)
    del norm.forward
    with monkeypatch.context() as patch:
        patch.setattr(RMSNorm, "forward", lambda self, x: 3 * x)
        _check(*_stream(torch.bfloat16), norm, lambda x: 3 * x)
    assert not calls


class _Negative(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return -weight


def test_a_parametrised_weight_is_the_one_it_is_now() -> None:
    norm, other = (_filled(RMSNorm(SIZE, 1e-6), torch.bfloat16) for _ in range(2))
    parametrize.register_parametrization(norm, "weight", _Negative())
    _check(*_stream(torch.bfloat16), norm, lambda x: -other(x))


@pytest.fixture
def graphs() -> list[torch.fx.GraphModule]:
    return []


@pytest.fixture
def compiler(graphs: list[torch.fx.GraphModule]) -> Callable[..., Any]:
    """Keeps the graphs that it gets."""

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    return compiler


def test_a_compiler_gets_both_apart(calls: list[Any], graphs: Any, compiler: Any) -> None:
    norm = _filled(RMSNorm(SIZE, 1e-6), torch.float32)
    compiled = torch.compile(add_and_norm, fullgraph=True, backend=compiler)
    x, y = _stream(torch.float32)
    total, normed = compiled(x, y, norm)
    assert torch.equal(total, x + y) and torch.equal(normed, norm(x + y))
    assert len(graphs) == 1 and not calls


def test_a_compiled_norm_is_called(calls: list[Any], graphs: Any, compiler: Any) -> None:
    norm = _filled(RMSNorm(SIZE, 1e-6), torch.float32)
    norm.compile(backend=compiler)
    x, y = _stream(torch.float32)
    assert torch.equal(add_and_norm(x, y, norm)[1], norm(x + y))
    assert graphs and not calls
