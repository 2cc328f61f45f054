"""Statistics of what layers do in a step, from what they give to kernels."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from hybridrt.introspection.attention_weights import (
    Row,
    attention_statistics,
    can_read,
    read_seen,
)
from hybridrt.introspection.decays import Decay, token_decays
from hybridrt.introspection.intervals import IntervalMeans, Run
from hybridrt.introspection.statistics import num_heads_of

Found = dict[tuple[int, str], Float32[Tensor, "positions heads"]]
"""By layer and name of a statistic: its values at the positions of a step."""


@dataclass(frozen=True, slots=True)
class TracedRow:
    """A sequence's row of a step, and its tokens cut where a position is recorded."""

    row: Row
    runs: list[Run]

    @property
    def positions(self) -> list[int]:
        """Those that are recorded behind some of its tokens."""
        return [run.position for run in self.runs if run.stop == run.position]


@dataclass(slots=True)
class _Seen:
    """What a step's calls gave so far."""

    decays: dict[int, dict[int, list[Decay]]] = field(default_factory=dict)
    found: Found = field(default_factory=dict)


class CallStatistics:
    """Is shown the kernel calls of a step, and has statistics of one row behind it.

    Where a layer runs its kernel several times, with some of its heads each, decays are the
    means over all of them.
    """

    def __init__(self, modules: Mapping[int, nn.Module], names: frozenset[str]) -> None:
        self._modules, self._names = modules, names
        self._wants_decays = bool(names & {"decay", "half_life"})
        self._wants_weights = any(name.startswith("attention_") for name in names)
        self._means: defaultdict[tuple[int, int], IntervalMeans] = defaultdict(IntervalMeans)
        self._row = TracedRow(Row(0, slice(0, 0), 0), [])
        self._seen = _Seen()

    def begin(self, row: TracedRow) -> None:
        """Says which row the next calls are to be looked at for."""
        self._row, self._seen = row, _Seen()

    def see(self, index: int, call: int, kernel: str, given: Mapping[str, Any]) -> None:
        """Takes in a call; see `hybridrt.introspection.observe`."""
        if can_read(kernel):
            self._see_attention(index, call, kernel, given)
        elif self._wants_decays:
            self._see_decays(index, call, kernel, given)

    def take(self) -> Found:
        """What the calls of the step have shown."""
        found = self._seen.found
        for index, by_position in self._seen.decays.items():
            for name, part in (("decay", "mean"), ("half_life", "half_life")):
                if name in self._names and by_position:
                    rows = [
                        torch.stack([getattr(one, part) for one in calls]).mean(0)
                        for calls in by_position.values()
                    ]
                    found[index, name] = torch.stack(rows)
        return found

    def _see_decays(self, index: int, call: int, kernel: str, given: Mapping[str, Any]) -> None:
        row = self._row.row
        decays = token_decays(kernel, given, row.tokens, num_heads_of(self._modules[index]))
        if decays is None:
            return
        means = self._means[index, call].add(
            self._row.runs, lambda start, stop: decays.sums(self._inside(start, stop))
        )
        of_layer = self._seen.decays.setdefault(index, {})
        for position, mean in means.items():
            of_layer.setdefault(position, []).append(decays.finish(mean))

    def _see_attention(self, index: int, call: int, kernel: str, given: Mapping[str, Any]) -> None:
        row, positions = self._row.row, self._row.positions
        queries = [position - 1 for position in positions] if self._wants_weights else []
        if not queries and "kv_norm" not in self._names:
            return
        seen = read_seen(kernel, given, row, queries)
        if "kv_norm" in self._names:
            norms = seen.norms(row.context)
            means = self._means[index, call].add(
                self._row.runs,
                lambda start, stop: (norms[self._inside(start, stop)].sum(0),),
            )
            if means:
                self._seen.found[index, "kv_norm"] = torch.stack([one for (one,) in means.values()])
        if queries:
            found = attention_statistics(kernel, given, row, seen, queries)
            named = {name: values for name, values in found.items() if name in self._names}
            self._seen.found |= {(index, name): values for name, values in named.items()}

    def _inside(self, start: int, stop: int) -> slice:
        """These tokens of the sequence, among the row's."""
        return slice(start - self._row.row.context, stop - self._row.row.context)
