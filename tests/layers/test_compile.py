"""A decode step of any layer is one graph to a compiler; in it the cache is written, then read."""

from dataclasses import dataclass, field, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from tests.harness.bench import Bench, Setting, random_tokens
from tests.harness.graphs import QUIET, Graphs, calls, comes_from, op_of, writes
from tests.harness.layer_rows import BY_REASON, LAYERS, LayerRow

pytestmark = QUIET

CONTEXTS = {"a": 5, "b": 6}  # tokens of each sequence before it decodes
STEPS = 3
NUM_PAGES = 43  # no other size in a layer is that


@dataclass
class Run:
    """Decode steps of one layer, compiled if `graphs` is given."""

    row: LayerRow
    setting: Setting
    graphs: Graphs | None = None
    outputs: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench = Bench(self.row, self.setting, NUM_PAGES)
        self.bench.step([(name, self._tokens(name, 0, n)) for name, n in CONTEXTS.items()])
        if self.graphs is not None:
            self.bench.layer.compile(fullgraph=True, backend=self.graphs)

    def decode(self, steps: int) -> None:
        for _ in range(steps):
            work = [(name, self._next(name)) for name in CONTEXTS]
            self.outputs += self.bench.step(work).values()

    def _next(self, name: str) -> Tensor:
        start = self.bench.num_tokens(name)
        return self._tokens(name, start, start + 1)

    def _tokens(self, name: str, start: int, stop: int) -> Tensor:
        return random_tokens(100, seed=ord(name))[start:stop]

    def same_bits(self, other: "Run") -> bool:
        outputs = zip(self.outputs, other.outputs, strict=True)
        same = all(torch.equal(ours, theirs) for ours, theirs in outputs)
        return same and torch.equal(self.bench.pool, other.bench.pool)


DEFAULT = Setting(page_size=16, kernel_block_size=4)  # page tables are as wide at every step
CASES = {
    **{row.reason: (row, DEFAULT) for row in LAYERS},
    "attention, NHD": (BY_REASON["attention"], replace(DEFAULT, kv_layout="NHD")),
    "attention, int8": (BY_REASON["attention"], replace(DEFAULT, kv_cache_dtype="int8")),
    "attention, fp8": (BY_REASON["attention"], replace(DEFAULT, kv_cache_dtype="fp8_e4m3")),
    "MLA, fp8": (BY_REASON["MLA"], replace(DEFAULT, kv_cache_dtype="fp8_e4m3")),
    "sparse MLA, fp8": (BY_REASON["sparse MLA"], replace(DEFAULT, kv_cache_dtype="fp8_e4m3")),
    "attention, numba": (BY_REASON["attention"], replace(DEFAULT, attention_backend="numba")),
    "MLA, numba": (BY_REASON["MLA"], replace(DEFAULT, attention_backend="numba")),
    "Mamba-1, numba": (BY_REASON["Mamba-1"], replace(DEFAULT, state_backend="numba")),
    "Mamba-2, numba": (BY_REASON["Mamba-2"], replace(DEFAULT, state_backend="numba")),
}


@cache
def _compiled(case: str) -> tuple[Run, Graphs]:
    torch.compiler.reset()
    graphs = Graphs()
    run = Run(*CASES[case], graphs)
    run.decode(STEPS)
    return run, graphs


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_one_graph_and_gives_the_same_bits(case: str) -> None:
    run, graphs = _compiled(case)
    eager = Run(*CASES[case])
    eager.decode(STEPS)
    assert run.same_bits(eager)
    assert len(graphs.traced) == 1  # other positions need no other


@pytest.mark.parametrize("case", CASES)
def test_the_cache_is_written_before_it_is_read(case: str) -> None:
    run, graphs = _compiled(case)
    for graph in (graphs.traced[0], graphs.functional[0]):
        written = [bool(writes(op_of(node))) for node in calls(graph)]
        assert written == sorted(written, reverse=True)
        assert any(written)
        # What reads a state writes it too.
        assert all(written) == (run.bench.layer.cache_spec.kind == "state")
    nodes, num_writers = calls(graphs.functional[0]), sum(written)
    for reader in nodes[num_writers:]:
        assert all(comes_from(reader, writer) for writer in nodes[:num_writers])


@pytest.mark.parametrize("case", CASES)
def test_of_a_cache_a_graph_gets_the_bytes_of_the_layer_alone(case: str) -> None:
    """If it got views in other dtypes on the same bytes, torch couldn't follow the writes."""
    run, graphs = _compiled(case)
    inputs = graphs.traced[0].graph.find_nodes(op="placeholder")
    tensors = [node.meta["example_value"] for node in inputs]
    (of_cache,) = (
        x for x in tensors if isinstance(x, Tensor) and x.shape[:1] == run.bench.pool.shape[:1]
    )
    assert of_cache.dtype == torch.uint8
    assert of_cache.shape[1] == run.bench.layer.cache_spec.block_bytes


@pytest.mark.parametrize("reason", ["attention", "MLA"])
def test_a_second_graph_serves_page_tables_of_all_widths(reason: str) -> None:
    torch.compiler.reset()
    graphs, setting = Graphs(), Setting(page_size=2, kernel_block_size=1)
    run, eager = Run(BY_REASON[reason], setting, graphs), Run(BY_REASON[reason], setting)
    for of in (run, eager):
        of.decode(9)
    assert run.same_bits(eager)
    assert len(graphs.traced) == 2
