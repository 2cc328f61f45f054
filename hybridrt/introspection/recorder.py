"""Looks on while a sequence is computed: what its layers hold at some positions, and do there."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float32
from torch import Tensor

from hybridrt.cache.prefix_tree import PagesOfGroups
from hybridrt.engine.engine import Engine
from hybridrt.engine.held import Held
from hybridrt.engine.read_cache import read_tokens
from hybridrt.engine.runner import RowResult
from hybridrt.engine.scheduler import Row as ScheduledRow
from hybridrt.introspection.attention_weights import Row
from hybridrt.introspection.call_statistics import CallStatistics, Found, TracedRow
from hybridrt.introspection.intervals import runs_between
from hybridrt.introspection.observe import observed
from hybridrt.introspection.state_statistics import StateLayer, StateStatistics
from hybridrt.introspection.trace_file import TraceWriter

Steps = Callable[[list[ScheduledRow]], Sequence[RowResult]]


class TraceRecorder:
    """Records one sequence while it is computed; `Engine.recording` shows it the steps.

    It keeps the statistics, and of each layer one state and sums of what the next position
    still waits for. States and tokens go to the writer, step by step.

    Attributes:
        found: of each layer and statistic, the values at positions, a tensor for each step.
    """

    def __init__(
        self,
        engine: Engine,
        held: Held,
        layers: Sequence[int],
        positions: Sequence[int],
        statistics: frozenset[str],
        writer: TraceWriter | None,
    ) -> None:
        self._engine, self._held, self._writer = engine, held, writer
        self._positions, self._num_seen = positions, held.num_computed
        plans = {index: engine.plan.layers[index] for index in layers}
        named = engine.model.cached_layers()
        modules = {index: named[plan.name] for index, plan in plans.items()}
        self._modules = modules
        self._state_layers = {
            index: StateLayer.of(modules[index], plan, engine.pool)
            for index, plan in plans.items()
            if plan.page_size is None
        }
        self._token_plans = {i: plan for i, plan in plans.items() if plan.page_size is not None}
        self._calls = CallStatistics(modules, statistics)
        self._states = StateStatistics(self._state_layers, statistics)
        self._states.begin(self._own_pages() if held.num_computed else None)
        self.found: defaultdict[tuple[int, str], list[Float32[Tensor, "positions heads"]]]
        self.found = defaultdict(list)

    @property
    def sequence_id(self) -> str:
        return self._held.name

    def positions_inside(self, start: int, stop: int) -> list[int]:
        if not self._state_layers:
            return []
        return [p for p in self._positions if max(start, self._num_seen) < p < stop]

    def run(self, rows: list[ScheduledRow], run: Steps) -> Sequence[RowResult]:
        row = self._find(rows)
        if row.row.end <= self._num_seen:  # computed again, behind a preemption
            return run(rows)
        self._calls.begin(row)
        with observed(self._modules, self._calls.see):
            results = run(rows)
        self._look(row)
        self._num_seen = row.row.end
        return results

    def _find(self, rows: list[ScheduledRow]) -> TracedRow:
        """The sequence's row, without those of its tokens that were seen before."""
        first = 0
        for index, (sequence, start, stop) in enumerate(rows):
            if sequence.sequence_id == self.sequence_id:
                tokens = slice(first, first + stop - start)
                new = max(start, self._num_seen)
                runs = runs_between(new, stop, self._positions)
                return TracedRow(Row(index, tokens, start), runs)
            first += stop - start
        raise AssertionError(f"{self.sequence_id} is not in this step")

    @torch.inference_mode()
    def _look(self, row: TracedRow) -> None:
        """Behind a step: takes down what is recorded, before anything of it is given back."""
        positions, pages = row.positions, self._pages_at(row)
        found: Found = self._calls.take()
        if positions and self._state_layers:
            found |= self._states.of(pages)
        found = {key: values.float().cpu() for key, values in found.items()}
        for key, values in found.items():
            self.found[key].append(values)
        if self._writer is None:
            return
        try:
            if self._token_plans:
                self._write_tokens(self._writer, row)
            for number, position in enumerate(positions):
                states = {i: layer.read(pages[number]) for i, layer in self._state_layers.items()}
                of_position = {key: values[number] for key, values in found.items()}
                self._writer.add_position(position, states, of_position)
        finally:
            self._writer.write_index()

    def _pages_at(self, row: TracedRow) -> list[PagesOfGroups]:
        """Where the states at the row's positions are: its last one in the sequence's own pages."""
        if not self._state_layers:
            return [{} for _ in row.positions]
        start, end = row.row.context, row.row.end
        inside = dict(self._engine.pages.exports(self.sequence_id, start, end))
        return [self._own_pages() if p == end else inside[p] for p in row.positions]

    def _own_pages(self) -> PagesOfGroups:
        tables = self._engine.pages.tables(self.sequence_id)
        groups = enumerate(self._engine.plan.groups)
        return {g: [*tables[g].physical_ids] for g, group in groups if group.page_size is None}

    def _write_tokens(self, writer: TraceWriter, row: TracedRow) -> None:
        """The step's new tokens, all of which are in the cache still: of a window too."""
        start, stop = row.runs[0].start, row.row.end
        pool = self._engine.pool
        tensors = {
            index: read_tokens(
                self._modules[index],
                plan,
                pool,
                self._engine.held.table(self._held, plan.group),
                start,
                stop,
            )
            for index, plan in self._token_plans.items()
        }
        writer.add_tokens(start, stop, tensors)
