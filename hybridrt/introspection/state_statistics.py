"""The states of layers at positions of a sequence, and statistics of them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.cache.plan import LayerPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.prefix_tree import PagesOfGroups
from hybridrt.introspection.call_statistics import Found
from hybridrt.introspection.statistics import (
    by_head,
    effective_ranks,
    gram_matrices,
    memory_name,
    norms,
    num_heads_of,
    saturation,
)
from hybridrt.layers.cached import CachedLayer

AT_ONCE = 8  # positions that are looked at together: bounds the memory that they take


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

    @property
    def has_matrices(self) -> bool:
        """Whether its memory is a matrix, or one for each head."""
        return self.views[self.memory].dim() >= 3

    def read(self, pages: PagesOfGroups) -> dict[str, Tensor]:
        """Views of the states in these pages."""
        page = pages[self.group][self.part]
        return {name: view[page] for name, view in self.views.items()}

    def heads(self, pages: PagesOfGroups) -> Float[Tensor, " heads *rest"]:
        """The memory in these pages by head, a view; what is no memory is one head's."""
        state = self.views[self.memory][pages[self.group][self.part]]
        return by_head(state, self.num_heads) if self.is_memory else state[None]


class StateStatistics:
    """Statistics of states at one position after another; of each layer it keeps the last."""

    def __init__(self, layers: Mapping[int, StateLayer], names: frozenset[str]) -> None:
        self._layers, self._names = layers, names
        self._wants_norms = bool(names & {"state_norm", "saturation"})
        self._last: dict[int, tuple[Tensor, Tensor]] = {}  # a layer's heads, and their norms

    def begin(self, pages: PagesOfGroups | None) -> None:
        """Says where the states before the first position are; None: there are none."""
        for index, layer in self._layers.items() if "saturation" in self._names else ():
            if pages is None:
                state = torch.zeros_like(layer.views[layer.memory][0])
                heads = by_head(state, layer.num_heads) if layer.is_memory else state[None]
            else:
                heads = layer.heads(pages).clone()
            self._last[index] = heads[None], norms(heads[None])

    def _norms(
        self, index: int, layer: StateLayer, pages: Sequence[PagesOfGroups]
    ) -> tuple[Float32[Tensor, "positions heads"], Float32[Tensor, "positions heads"]]:
        """Norms and saturations of a layer's memory at some positions; zeros if not wanted."""
        states = torch.stack([layer.heads(one) for one in pages])
        sizes = norms(states)
        if "saturation" not in self._names or not layer.is_memory:
            return sizes, torch.zeros_like(sizes)
        before, size = self._last[index]
        first = norms(states[:1].float() - before.float())
        changes = torch.cat([first, norms(states[1:].float() - states[:-1].float())])
        self._last[index] = states[-1:].clone(), sizes[-1:]
        return sizes, saturation(changes, torch.cat([size, sizes[:-1]]), sizes)

    def of(self, pages: Sequence[PagesOfGroups]) -> Found:
        """At the next positions, whose states are in these pages."""
        found: Found = {}
        for index, layer in self._layers.items() if self._wants_norms else ():
            lots = [
                self._norms(index, layer, pages[start : start + AT_ONCE])
                for start in range(0, len(pages), AT_ONCE)
            ]
            sizes, saturations = zip(*lots, strict=True)
            if "state_norm" in self._names:
                found[index, "state_norm"] = torch.cat(sizes)
            if "saturation" in self._names and layer.is_memory:
                found[index, "saturation"] = torch.cat(saturations)
        if "effective_rank" in self._names:
            self._add_ranks(pages, found)
        return found

    def _add_ranks(self, pages: Sequence[PagesOfGroups], found: Found) -> None:
        """Of all layers together, with as few calls as there are sizes of matrices."""
        parts: defaultdict[int, list[Tensor]] = defaultdict(list)
        for start in range(0, len(pages), AT_ONCE):
            grams: defaultdict[int, list[tuple[int, Tensor]]] = defaultdict(list)
            some = pages[start : start + AT_ONCE]
            for index, layer in self._layers.items():
                if layer.is_memory and layer.has_matrices:
                    gram = gram_matrices([layer.read(one)[layer.memory] for one in some])
                    grams[gram.shape[-1]].append((index, gram))
            for of_size in grams.values():
                ranks = effective_ranks(torch.cat([gram for _, gram in of_size]))
                counts = [len(gram) for _, gram in of_size]
                for (index, _), values in zip(of_size, ranks.split(counts), strict=True):
                    parts[index].append(values.view(len(some), -1))
        found |= {(index, "effective_rank"): torch.cat(values) for index, values in parts.items()}
