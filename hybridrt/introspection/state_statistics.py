"""The states of layers at positions of a sequence, and statistics of them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.cache.plan import LayerPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.reuse import StateCopies
from hybridrt.introspection.call_statistics import Found
from hybridrt.introspection.statistics import (
    by_head,
    effective_ranks,
    gram_matrices,
    has_ranks,
    memory_name,
    norms,
    num_heads_of,
    saturation,
)
from hybridrt.layers.cached import CachedLayer

AT_ONCE = 8  # positions whose states are looked at together: bounds the copies of them


@dataclass(frozen=True, slots=True)
class StateLayer:
    """A layer's views of the pool, and which of them is its memory.

    `is_memory` is false where there are but the last inputs of convolutions.
    """

    views: Mapping[str, Tensor]
    group: int
    part: int
    memory: str
    is_memory: bool
    num_heads: int

    @classmethod
    def of(cls, layer: CachedLayer, plan: LayerPlan, pool: Pool) -> "StateLayer":
        """The layer of that plan."""
        names = [state.name for state in layer.cache_spec.states]
        views = layer.cache_spec.unpack(pool.layer_pages(plan))
        memory, is_memory = memory_name(names)
        group = [group.name for group in pool.plan.groups].index(plan.group)
        return cls(
            dict(zip(names, views, strict=True)),
            group,
            plan.part,
            memory,
            is_memory,
            num_heads_of(layer) if is_memory else 1,
        )

    def read(self, pages: StateCopies) -> dict[str, Tensor]:
        """Views of the states in these pages."""
        page = pages[self.group][self.part]
        return {name: view[page] for name, view in self.views.items()}

    def heads(self, states: Float[Tensor, " positions *shape"]) -> Tensor:
        """The memory of several positions, by head; what is no memory is one head's."""
        return by_head(states, self.num_heads) if self.is_memory else states.flatten(1)[:, None]


class StateStatistics:
    """Statistics of states at one position after another; of each layer it keeps the last."""

    def __init__(self, layers: Mapping[int, StateLayer], names: frozenset[str]) -> None:
        self._layers, self._names = layers, names
        self._last: dict[int, Tensor] = {}

    def begin(self, pages: StateCopies | None) -> None:
        """Says where the states before the first position are; None: there are none."""
        for index, layer in self._layers.items() if "saturation" in self._names else ():
            view = layer.views[layer.memory]
            last = torch.zeros_like(view[0]) if pages is None else layer.read(pages)[layer.memory]
            self._last[index] = layer.heads(last[None].clone())[0]

    def of(self, pages: Sequence[StateCopies]) -> Found:
        """At the next positions, whose states are in these pages."""
        parts: defaultdict[tuple[int, str], list[Tensor]] = defaultdict(list)
        for start in range(0, len(pages), AT_ONCE):
            for key, values in self._of_some(pages[start : start + AT_ONCE]):
                parts[key].append(values)
        return {key: torch.cat(values) for key, values in parts.items()}

    def _of_some(
        self, pages: Sequence[StateCopies]
    ) -> Iterator[tuple[tuple[int, str], Float[Tensor, "positions heads"]]]:
        grams: defaultdict[int, list[tuple[int, Tensor]]] = defaultdict(list)
        for index, layer in self._layers.items():
            states = torch.stack([layer.read(one)[layer.memory] for one in pages])
            heads = layer.heads(states)
            if "state_norm" in self._names:
                yield (index, "state_norm"), norms(heads)
            if not layer.is_memory:
                continue
            if "saturation" in self._names:
                yield (index, "saturation"), saturation(heads, self._last[index])
                self._last[index] = heads[-1].clone()
            if "effective_rank" in self._names and has_ranks(states):
                gram = gram_matrices(states)
                grams[gram.shape[-1]].append((index, gram))
        for (
            of_size
        ) in grams.values():  # the products of all layers, as few calls as there are sizes
            ranks = effective_ranks(torch.cat([gram for _, gram in of_size]))
            counts = [len(gram) for _, gram in of_size]
            for (index, _), found in zip(of_size, ranks.split(counts), strict=True):
                yield (index, "effective_rank"), found.view(len(pages), -1)
