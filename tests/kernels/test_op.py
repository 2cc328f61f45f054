"""Contracts as torch ops: what their schemas say, and that an op does what its contract does."""

import importlib
import pkgutil
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import hybridrt.kernels
from hybridrt.kernels import op as kernels_op
from hybridrt.kernels.entry_attention import entry_attention
from hybridrt.kernels.moe import stacked_moe_experts
from hybridrt.kernels.pool_chunks import pool_chunks
from hybridrt.kernels.recent_inputs import recent_inputs
from hybridrt.kernels.reference.entries import EntryGrid
from hybridrt.kernels.select_entries import select_entries
from hybridrt.kernels.ssd import ssd
from tests.harness.batches import TOKENS, Row, make_batch, pages_of
from tests.harness.bench import Bench, Setting, random_tokens
from tests.harness.graphs import QUIET, Graphs, calls, writes
from tests.harness.layer_rows import BY_REASON

WRITTEN: dict[str, set[str]] = {
    "average_blocks": {"cache"},
    "causal_conv1d": {"conv_state"},
    "entry_attention": set(),
    "gated_delta_rule": {"ssm_state"},
    "linear_recurrence": {"state"},
    "mla_attention": set(),
    "mlstm": {"memory", "normaliser", "peak"},
    "paged_attention": set(),
    "pool_chunks": set(),
    "recent_inputs": {"state"},
    "relative_attention": set(),
    "select_blocks": set(),
    "select_entries": set(),
    "select_peak_blocks": set(),
    "select_tokens": set(),
    "selective_scan": {"ssm_state"},
    "sparse_attention": set(),
    "sparse_mla_attention": set(),
    "ssd": {"ssm_state"},
    "stacked_moe_experts": set(),
    "stacked_relu2_experts": set(),
    "wkv": {"numerator", "denominator", "peak"},
    "write_pages": {"cache"},
}
"""Every op, and which of its arguments it writes."""

LAYERS = {
    "attention": ("attention", Setting(4, 2)),
    "attention, numba": ("attention", Setting(4, 2, attention_backend="numba")),
    "window": ("attention, wide window, small values, sinks", Setting(4, 2, "NHD")),
    "int8": ("attention", Setting(4, 2, kv_cache_dtype="int8")),
    "fp8": ("attention", Setting(4, 2, kv_cache_dtype="fp8_e4m3")),
    "selected blocks": ("gated attention to selected blocks", Setting(4, 2)),
    "selected blocks, int8": (
        "gated attention to selected blocks",
        Setting(4, 2, kv_cache_dtype="int8"),
    ),
    "blocks by their best": ("attention to blocks by their best", Setting(4, 2)),
    "MLA": ("MLA", Setting(4, 2)),
    "MLA, numba": ("MLA", Setting(4, 2, attention_backend="numba")),
    "MLA, fp8": ("MLA", Setting(4, 2, kv_cache_dtype="fp8_e4m3")),
    "profiles": ("profiles of distances, window", Setting(4, 2)),
    "profiles, int8": ("profiles of distances", Setting(4, 2, kv_cache_dtype="int8")),
    "sparse MLA": ("sparse MLA", Setting(4, 2)),
    "sparse MLA, fp8": ("sparse MLA", Setting(4, 2, kv_cache_dtype="fp8_e4m3")),
    "Mamba-1": ("Mamba-1", Setting(state_backend="numba")),
    "Mamba-1 in heads": ("Mamba-1 in heads", Setting(state_backend="numba")),
    "Mamba-2": ("Mamba-2", Setting(state_backend="numba")),
    "short convolution": ("short convolution", Setting()),
    "RG-LRU": ("RG-LRU", Setting(state_backend="numba")),
    "gated delta net": ("gated delta net", Setting(state_backend="numba")),
    "mLSTM": ("mLSTM", Setting()),
    "RWKV": ("RWKV", Setting()),
}
"""Layers of one cache whose kernels are every op with a cache, with all kinds of caches."""


class _Recorder(TorchDispatchMode):
    """Keeps the calls of this package's ops: each op with its arguments as they were before."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "hybridrt":
            before = (arg.clone() if isinstance(arg, Tensor) else arg for arg in args)
            self.calls.append((func, tuple(before)))
        return func(*args, **(kwargs or {}))


def _step(name: str) -> tuple[list[Tensor], Tensor, _Recorder]:
    """The outputs of a decode row beside a chunk in two rows, the pool behind, and the calls."""
    reason, setting = LAYERS[name]
    bench, x = Bench(BY_REASON[reason], setting), random_tokens(20, seed=0)
    bench.step([("old", x[:7])])
    with _Recorder() as recorder:
        out = bench.step([("old", x[7:8]), ("new", x[8:])], {"new": [4]})
    return list(out.values()), bench.pool, recorder


@cache
def _through_ops(name: str) -> tuple[list[Tensor], Tensor, _Recorder]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels_op, "is_compiling", lambda: True)
        return _step(name)


def _check(op: Any, args: tuple[Any, ...]) -> None:
    tests = ["test_schema", "test_faketensor"]
    if any(isinstance(arg, Tensor) and arg.dtype == torch.float8_e4m3fn for arg in args):
        tests.remove("test_schema")  # that one multiplies, which this dtype can't
    torch.library.opcheck(op, args, test_utils=tests)


def test_every_op_declares_what_it_writes() -> None:
    for module in pkgutil.iter_modules(hybridrt.kernels.__path__):
        importlib.import_module(f"hybridrt.kernels.{module.name}")
    names = (name.split("::") for name in torch._C._dispatch_get_all_op_names())
    ours = {
        op: getattr(torch.ops.hybridrt, op).default for space, op in names if space == "hybridrt"
    }
    assert {name: writes(op) for name, op in ours.items()} == WRITTEN


def test_every_op_with_a_cache_is_among_these_layers() -> None:
    called = {op._schema.name for name in LAYERS for op, _ in _through_ops(name)[2].calls}
    without_cache = {"stacked_moe_experts", "stacked_relu2_experts"}
    tested_below = {"pool_chunks", "select_entries", "entry_attention"}
    others = WRITTEN.keys() - without_cache - tested_below
    assert called == {f"hybridrt::{name}" for name in others}


@pytest.mark.parametrize("name", LAYERS)
def test_an_op_gives_the_bits_of_its_contract_which_runs_where_nothing_compiles(name: str) -> None:
    outputs, pool, recorder = _step(name)
    through_ops, its_pool, _ = _through_ops(name)
    assert not recorder.calls
    assert all(torch.equal(a, b) for a, b in zip(outputs, through_ops, strict=True))
    assert torch.equal(pool, its_pool)


@pytest.mark.parametrize("name", LAYERS)
def test_schemas_and_fakes_pass_torchs_own_checks(name: str) -> None:
    """An op writes what it declares and nothing else, returns no view, and its fake is right."""
    for op, args in _through_ops(name)[2].calls:
        _check(op, args)


def test_the_op_of_experts_passes_them_too() -> None:
    x, ids = random_tokens(5, seed=0), torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1], [2, 0]])
    gate_up, down = torch.randn(3, 16, x.shape[1]), torch.randn(3, x.shape[1], 8)
    op = torch.ops.hybridrt.stacked_moe_experts.default
    args = (x, gate_up, down, ids, torch.rand(5, 2))
    biases = (torch.randn(3, 16), torch.randn(3, x.shape[1]))
    for rest in ((None, None, "silu", 1.0, 1.0), (*biases, "clamped", 1.7, 0.5)):
        assert torch.equal(op(*args, *rest), stacked_moe_experts(*args, *rest))
        _check(op, (*args, *rest))


def test_the_op_of_recent_inputs_passes_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer that calls it is half of an attention, with two caches; models compile it."""
    batch = make_batch([Row(3, 1, page=1), Row(4, 1, page=0)], num_decodes=2)
    x, states = torch.randn(2, 6), [torch.ones(3, 2, 6), torch.ones(3, 2, 6)]
    plain = recent_inputs(x, states[0], *pages_of(batch), batch)
    monkeypatch.setattr(kernels_op, "is_compiling", lambda: True)
    with _Recorder() as recorder:
        assert torch.equal(recent_inputs(x, states[1], *pages_of(batch), batch), plain)
    assert torch.equal(*states)
    ((op, args),) = recorder.calls
    _check(op, args)


def test_the_ops_of_entries_pass_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers that call them have several caches; models compile those."""
    batch = make_batch([Row(6, 1, [1]), Row(4, 3, [0])], num_decodes=1, block_size=8)
    pages, grid = batch.token_pages(TOKENS), EntryGrid(2, 8)
    q, weights, sinks = torch.randn(4, 3, 6), torch.rand(4, 3), torch.randn(3)
    kv, entries = torch.randn(2, 8, 6), torch.randn(2, 4, 6)
    inputs, bias = torch.randn(2, 8, 24), torch.randn(2, 12)
    seen = (q, kv, pages, entries, pages, grid, batch, 0.4, 8)

    def results() -> list[Tensor]:
        selected = select_entries(q, weights, entries, pages, grid, batch, 2)
        return [
            selected,
            entry_attention(*seen),
            entry_attention(*seen, sinks, selected),
            pool_chunks(inputs, bias, pages, batch, False),
            pool_chunks(inputs, bias, pages, batch, True),
        ]

    plain = results()
    monkeypatch.setattr(kernels_op, "is_compiling", lambda: True)
    with _Recorder() as recorder:
        assert all(torch.equal(a, b) for a, b in zip(plain, results(), strict=True))
    assert len(recorder.calls) == len(plain)
    for op, args in recorder.calls:
        _check(op, args)


@QUIET
def test_a_cache_that_nobody_bound_goes_into_a_graph_as_it_is() -> None:
    batch = make_batch([Row(3, 1, page=1), Row(4, 1, page=0)], num_decodes=2)
    x, B, dt, A = torch.randn(2, 4, 6), torch.randn(2, 2, 5), torch.rand(2, 4), -torch.rand(4)

    def scan(state: Tensor) -> Tensor:
        return ssd(x, dt, A, B, B, A, state, *pages_of(batch), batch, chunk_size=8)

    graphs, states = Graphs(), [torch.zeros(3, 4, 6, 5), torch.zeros(3, 4, 6, 5)]
    compiled = torch.compile(scan, fullgraph=True, backend=graphs)
    with torch.inference_mode():
        assert torch.equal(compiled(states[0]), scan(states[1]))
    assert torch.equal(*states)
    assert len(calls(graphs.traced[0])) == 1
