"""One cached layer on a small pool of poison, stepped by hand.

The pool has other bytes before and behind the layer's rows, its pages go out in
random order, and every byte that no live page holds is checked after each step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheFormat
from tests.harness.allocations import nothing_larger_than
from tests.harness.batches import STATES, TOKENS, Row, make_batch
from tests.harness.layer_rows import LayerRow
from tests.harness.random_weights import randomise
from tests.harness.small_layers import HIDDEN

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
    attention_backend: Any = "reference"


@dataclass
class _Sequence:
    num_tokens: int = 0
    pages: list[int] = field(default_factory=list)
    released: int = 0  # pages before those, which it has given back
    ever_held: set[int] = field(default_factory=set)
    checkpoints: dict[int, int] = field(default_factory=dict)  # by tokens: a page of its own
    starts_from: int | None = None  # another's checkpoint, before the first step


class Bench:
    """A layer with its pool, and the sequences that live in it, by name."""

    def __init__(self, row: LayerRow, setting: Setting, num_pages: int = 40) -> None:
        self.layer = row.make()
        randomise(self.layer)
        self._format(setting)
        self._blocks_per_page = setting.page_size // setting.kernel_block_size
        if self.holds_states:
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
        layer.cache_group = STATES if self.holds_states else TOKENS
        layer.state_backend = setting.state_backend
        layer.attention_backend = setting.attention_backend

    @property
    def holds_states(self) -> bool:
        """Whether a page holds a state, and not tokens."""
        return self.layer.cache_spec.kind == "state"

    def num_tokens(self, name: str) -> int:
        """Tokens of that sequence that are in the cache."""
        return self._live[name].num_tokens if name in self._live else 0

    def pages(self, name: str) -> list[int]:
        """Its pages, in token order."""
        return list(self._live[name].pages)

    def ever_held(self, name: str) -> set[int]:
        """Its pages, and those that it has given back."""
        return set(self._live[name].ever_held)

    def checkpoint(self, name: str, position: int) -> Tensor:
        """The bytes of the checkpoint that the sequence left behind that many tokens."""
        return self._bytes([self._live[name].checkpoints[position]])

    def contents(self, name: str) -> Tensor:
        """The bytes of a sequence's pages, `[blocks, layer_bytes]`."""
        return self._bytes(self._live[name].pages)

    def start_from(self, name: str, of: str, position: int) -> None:
        """A new sequence that will read its state where the other has left a checkpoint."""
        page = self._live[of].checkpoints[position]
        self._live[name] = _Sequence(position, starts_from=page)

    def step(
        self, work: Sequence[tuple[str, Tensor]], cuts: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, Tensor]:
        """Runs the next tokens of some sequences, `[tokens, hidden]` each, in one batch.

        Those of a sequence in `cuts` are prefill rows, cut behind so many of the new tokens,
        and leave a checkpoint at each cut.
        """
        cuts = {} if cuts is None else cuts
        decodes = {name for name, x in work if name not in cuts and self._is_decode(name, x)}
        work = sorted(work, key=lambda item: item[0] not in decodes)
        rows = [row for name, x in work for row in self._rows(name, len(x), cuts.get(name, ()))]
        size = self._setting.kernel_block_size
        batch = make_batch(
            rows,
            num_decodes=len(decodes),
            block_size=size,
            cut_for_states=self.holds_states and any(row.follows for row in rows),
        )
        before = self.pool.clone()
        out = self._forward(torch.cat([x for _, x in work]), batch)
        self._check_states(before, rows)
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
        sequence = self._live.pop(name)
        self._free_pages([*sequence.pages, *sequence.checkpoints.values()])

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
        held = [[*of.pages, *of.checkpoints.values()] for of in self._live.values()]
        live = self._blocks_of([page for pages in held for page in pages])
        free = torch.ones(len(self.pool), dtype=torch.bool)
        free[live] = False
        assert self.pool[free].eq(POISON).all(), "a write into a free page"
        assert self.pool[:, :_BEFORE].eq(POISON).all(), "a write before the layer's bytes"
        assert self.pool[:, -_BEHIND:].eq(POISON).all(), "a write behind the layer's bytes"

    def _check_states(self, before: Tensor, rows: Sequence[Row]) -> None:
        """No page has changed that isn't a row's own."""
        if self.holds_states:
            others = torch.ones(len(self.pool), dtype=torch.bool)
            others[[row.page for row in rows]] = False
            assert torch.equal(before[others], self.pool[others]), "a write into another's page"

    def _bytes(self, pages: Sequence[int]) -> Tensor:
        return self.pool[self._blocks_of(pages), _BEFORE:-_BEHIND]

    def _is_decode(self, name: str, x: Tensor) -> bool:
        context = self.num_tokens(name)
        return len(x) == 1 and context > 0 and self._live[name].starts_from is None

    def _rows(self, name: str, queries: int, cuts: Sequence[int]) -> list[Row]:
        """One row, or more that follow each other: the last has the sequence's own page."""
        whole = self._row(name, queries)
        sequence, rows = self._live[name], list[Row]()
        for start, stop in pairwise([0, *cuts, queries]):
            context, page, before = whole.context + start, whole.page, whole.starts_from
            if self.holds_states:
                if stop < queries:
                    page = sequence.checkpoints[whole.context + stop] = self._free.pop()
                before = rows[-1].page if rows else before
            gone = self._first_block(context) - whole.released
            blocks, released = whole.blocks[gone:], whole.released + gone
            rows.append(
                Row(context, stop - start, blocks, page, released, before, follows=start > 0)
            )
        return rows

    def _row(self, name: str, queries: int) -> Row:
        sequence = self._live.setdefault(name, _Sequence())
        context = sequence.num_tokens
        sequence.num_tokens += queries
        size = self._setting.page_size
        need = 1 if self.holds_states else -(-sequence.num_tokens // size) - sequence.released
        while len(sequence.pages) < need:
            sequence.pages.append(self._free.pop())
            sequence.ever_held.add(sequence.pages[-1])
        if self.holds_states:
            before, sequence.starts_from = sequence.starts_from, None
            return Row(context, queries, page=sequence.pages[0], initial_page=before)
        blocks, released = self._blocks_of(sequence.pages), self._first_block(context)
        blocks = blocks[released - sequence.released * self._blocks_per_page :]
        return Row(context, queries, blocks, released=released)

    def _first_block(self, context: int) -> int:
        """What a page table begins with: a block, not a page."""
        window = self.layer.cache_spec.window
        return window.first_visible(context) // self._setting.kernel_block_size if window else 0

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
