"""One cached layer on a small pool of poison, stepped by hand.

The pool has other bytes before and behind the layer's rows, its pages go out in
random order, and every byte that no live page holds is checked after each step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheFormat
from tests.harness.allocations import nothing_larger_than
from tests.harness.batches import STATES, TOKENS, Row, make_batch
from tests.harness.layer_rows import HIDDEN, LayerRow, randomise

POISON = 0xFF  # NaN in every float
_BEFORE, _BEHIND = 32, 16  # bytes of a block around the layer's own


@dataclass(frozen=True)
class Setting:
    """How a layer is cached. None of it may change a result."""

    page_size: int = 16
    kernel_block_size: int = 16
    kv_layout: Any = "HND"
    state_backend: Any = "reference"
    page_seed: int = 0
    kv_cache_dtype: Any = "auto"


@dataclass
class _Sequence:
    num_tokens: int = 0
    pages: list[int] = field(default_factory=list)
    released: int = 0  # pages before those, which it has given back
    ever_held: set[int] = field(default_factory=set)


class Bench:
    """A layer with its pool, and the sequences that live in it, by name."""

    def __init__(self, row: LayerRow, setting: Setting, num_pages: int = 40) -> None:
        self.layer = row.make()
        randomise(self.layer)
        self._format(setting)
        self._blocks_per_page = setting.page_size // setting.kernel_block_size
        if self.layer.cache_spec.kind == "state":
            self._blocks_per_page = 1
        self._setting = setting
        layer_bytes = self.layer.cache_spec.block_bytes
        self.pool = torch.full(
            (num_pages * self._blocks_per_page, _BEFORE + layer_bytes + _BEHIND),
            POISON,
            dtype=torch.uint8,
        )
        self.layer.bind_kv_cache(self.pool[:, _BEFORE : _BEFORE + layer_bytes])
        draw = torch.Generator().manual_seed(setting.page_seed)
        self._free = torch.randperm(num_pages, generator=draw).tolist()
        self._live: dict[str, _Sequence] = {}
        self.largest: int | None = None  # bytes that an operation of a forward may make

    def _format(self, setting: Setting) -> None:
        layer = self.layer
        layer.cache_format = CacheFormat(
            setting.kernel_block_size, setting.kv_layout, setting.kv_cache_dtype
        )
        layer.cache_group = STATES if layer.cache_spec.kind == "state" else TOKENS
        layer.state_backend = setting.state_backend

    def num_tokens(self, name: str) -> int:
        """Tokens of that sequence that are in the cache."""
        return self._live[name].num_tokens if name in self._live else 0

    def pages(self, name: str) -> list[int]:
        """Its pages, in token order."""
        return list(self._live[name].pages)

    def ever_held(self, name: str) -> set[int]:
        """Its pages, and those that it has given back."""
        return set(self._live[name].ever_held)

    def step(self, work: Sequence[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Runs the next tokens of some sequences, `[tokens, hidden]` each, in one batch."""
        work = sorted(work, key=lambda item: not self._is_decode(*item))
        num_decodes = sum(self._is_decode(*item) for item in work)
        rows = [self._row(name, len(x)) for name, x in work]
        size = self._setting.kernel_block_size
        batch = make_batch(rows, num_decodes=num_decodes, block_size=size)
        out = self._forward(torch.cat([x for _, x in work]), batch)
        for name, _ in work:
            self._release(self._live[name])
        self.check_poison()
        parts = out.split([len(x) for _, x in work])
        return {name: part for (name, _), part in zip(work, parts, strict=True)}

    @torch.inference_mode()
    def _forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        if self.largest is None:
            return self.layer(x, batch)
        with nothing_larger_than(self.largest, self.pool):
            return self.layer(x, batch)

    def drop(self, name: str) -> None:
        """Frees a sequence's pages, now poison; the next to need one gets the last freed."""
        self._free_pages(self._live.pop(name).pages)

    def _free_pages(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.pool[self._blocks_of([page])] = POISON
            self._free.append(page)

    def _release(self, sequence: _Sequence) -> None:
        """Frees the pages that no later token sees."""
        window = self.layer.cache_spec.window
        if window is None:
            return
        first = window.first_visible(sequence.num_tokens) // self._setting.page_size
        gone = first - sequence.released
        self._free_pages(sequence.pages[:gone])
        del sequence.pages[:gone]
        sequence.released = first

    def check_poison(self) -> None:
        """Nothing but the layer's bytes of live pages has been written."""
        live = self._blocks_of([page for of in self._live.values() for page in of.pages])
        free = torch.ones(len(self.pool), dtype=torch.bool)
        free[live] = False
        assert self.pool[free].eq(POISON).all(), "a write into a free page"
        assert self.pool[:, :_BEFORE].eq(POISON).all(), "a write before the layer's bytes"
        assert self.pool[:, -_BEHIND:].eq(POISON).all(), "a write behind the layer's bytes"

    def _is_decode(self, name: str, x: Tensor) -> bool:
        return len(x) == 1 and self.num_tokens(name) > 0

    def _row(self, name: str, queries: int) -> Row:
        sequence = self._live.setdefault(name, _Sequence())
        context = sequence.num_tokens
        sequence.num_tokens += queries
        kind, size = self.layer.cache_spec.kind, self._setting.page_size
        need = 1 if kind == "state" else -(-sequence.num_tokens // size) - sequence.released
        while len(sequence.pages) < need:
            sequence.pages.append(self._free.pop())
            sequence.ever_held.add(sequence.pages[-1])
        if kind == "state":
            return Row(context, queries, page=sequence.pages[0])
        blocks, released = self._blocks_of(sequence.pages), 0
        window = self.layer.cache_spec.window
        if window is not None:  # a table begins with a block, not with a page
            released = window.first_visible(context) // self._setting.kernel_block_size
            blocks = blocks[released - sequence.released * self._blocks_per_page :]
        return Row(context, queries, blocks, released=released)

    def _blocks_of(self, pages: Sequence[int]) -> list[int]:
        r = self._blocks_per_page
        return [page * r + i for page in pages for i in range(r)]


def random_tokens(count: int, seed: int) -> Tensor:
    """Hidden states `[count, hidden]` to feed a layer with."""
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def alone(row: LayerRow, x: Tensor, kv_cache_dtype: str = "auto") -> Tensor:
    """The layer's outputs for one sequence, in one step, with nobody else there."""
    bench = Bench(row, Setting(kv_cache_dtype=kv_cache_dtype))
    return bench.step([("alone", x)])["alone"]
