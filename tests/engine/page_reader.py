"""The engine's loop around a `ContentModel`, with every token looked for in the cache.

Scheduler, pages and batches are the real ones. After every step the history of all live
sequences is read again: of those that ran through the `ForwardBatch`, and then of
everyone through the page tables. So a page that was lost, swapped, given to two or
written too late is found at once, and so is a state of another position.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hybridrt.batch import ForwardBatch, StatePages, TokenPages
from hybridrt.cache.plan import CachePlan
from hybridrt.cache.prefix import make_prefix_cache
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.config import EngineConfig
from hybridrt.engine.batch_builder import BatchBuilder
from hybridrt.engine.detokenizer import Detokenizer
from hybridrt.engine.scheduler import Row, Scheduler
from hybridrt.engine.sequence import Sequence as Running
from hybridrt.request import Request, SamplingParams
from tests.cache.stand_ins import CPU, StandIn, plan_of
from tests.cache.watched_pool import WatchedPool
from tests.engine.content_model import (
    VOCAB,
    ContentModel,
    Reading,
    mixed,
    seed_of,
    state_layer,
    token_layer,
    weighed,
)


def plain_layers(block: int) -> list[StandIn]:
    """One layer that keeps every token, and one with a state."""
    return [token_layer(block), state_layer()]


def small_plan(page_size: int, block: int, memory: int) -> CachePlan:
    layers = plain_layers(block)
    return plan_of(layers, memory, page_size=page_size, kernel_block_size=block)


class History:
    """What must stand in the cache behind each of a sequence's tokens."""

    def __init__(self, token_ids: list[int], layers: Sequence[StandIn]) -> None:
        self.token_ids = token_ids  # it grows
        self.specs = [layer.cache_spec for layer in layers]
        self._hashes = [[seed_of(index)] for index in range(len(layers))]

    def state(self, layer: int, num_tokens: int) -> tuple[int, int]:
        """A state that has seen so many tokens."""
        hashes = self._hashes[layer]
        for position in range(len(hashes) - 1, num_tokens):
            hashes.append(mixed(hashes[-1], self.token_ids[position], position))
        return num_tokens, hashes[num_tokens]

    def next_token(self, num_tokens: int) -> int:
        """What must follow after so many tokens."""
        value = 0
        for layer, spec in enumerate(self.specs):
            if spec.kind == "state":
                value += self.state(layer, num_tokens)[1]
            else:
                first = spec.window.first_visible(num_tokens - 1) if spec.window else 0
                value += weighed(np.array(self.token_ids[first:num_tokens]), first)
        return value % VOCAB


def continuation(
    prompt: Sequence[int], count: int, layers: Sequence[StandIn] | None = None
) -> list[int]:
    """What must come behind a prompt."""
    history = History(list(prompt), layers or plain_layers(1))
    for _ in range(count):
        history.token_ids.append(history.next_token(len(history.token_ids)))
    return history.token_ids[len(prompt) :]


class PageReader:
    """An engine whose model reads the history of every sequence at every step."""

    def __init__(
        self, plan: CachePlan, layers: Sequence[StandIn] | None = None, **options: Any
    ) -> None:
        page_size = next((group.page_size for group in plan.groups if group.page_size), 1)
        options = {"page_size": page_size, "enable_prefix_caching": False, **options}
        self.config = EngineConfig(model="page reader", **options)
        self.pool = WatchedPool(plan)
        self.pages = SequencePages(self.pool, make_prefix_cache(self.pool, self.config))
        self.scheduler = Scheduler(self.config, self.pages)
        self.batches = BatchBuilder(self.pages, plan.groups, CPU)
        if layers is None:
            block = plan.group("full").kernel_block_size
            assert block is not None
            layers = plain_layers(block)
        self.layers = layers
        self.model = ContentModel(layers, plan, self.pool)
        self.histories: dict[str, History] = {}

    def add(
        self, name: str, prompt: Sequence[int], max_tokens: int, salt: str | None = None
    ) -> Running:
        running = self._sequence(name, prompt, max_tokens, salt)
        self.scheduler.add(running)
        return running

    def fork(self, parent: Running, name: str, more: Sequence[int], max_tokens: int) -> Running:
        """A sequence that begins with what is cached of another, and goes on with `more`.

        Raises:
            OutOfPages: there is no room for it.
        """
        assert more, "there is something to compute"
        self.pages.fork(parent.sequence_id, name)
        committed = self.pages.num_committed(parent.sequence_id)
        child = self._sequence(name, [*parent.token_ids[:committed], *more], max_tokens)
        child.num_computed = committed
        self.scheduler.adopt(child)
        return child

    def step(self, *, fails: bool = False) -> list[Row]:
        """One step; a failing one writes to some layers, and is then undone."""
        rows = self.scheduler.schedule()
        if not rows:
            return rows
        batch = self.batches.build(rows)
        self._assert_as_built_anew(batch, rows)
        if fails:
            self.model.run(batch, num_layers=(len(self.layers) + 1) // 2)
            self.scheduler.preempt_all(rows)
        else:
            readings = self.model.run(batch)
            for row, reading in zip(rows, readings, strict=True):
                self._check_reading(row, reading)
            tokens = [r.next_token % VOCAB if r.samples else None for r in readings]
            finished = self.scheduler.commit(rows, tokens)
            assert all(sequence.finish_reason for sequence in finished)
        self.check_everyone()
        self.pool.assert_nobody_writes_into_free_pages()
        return rows

    def check_everyone(self) -> None:
        """Reads what later tokens will see of every sequence that has pages."""
        groups = self.pool.plan.groups
        index_of = {group.name: g for g, group in enumerate(groups)}
        for name in self.pages:
            num_tokens, history = self.pages.num_committed(name), self.histories[name]
            tables, initial = self.pages.tables(name), self.pages.initial_states(name)
            for row in self.model.rows:
                g = index_of[row.group]
                group, table = groups[g], tables[g]
                if group.kind == "state":
                    if num_tokens:
                        pages = table.physical_ids if initial is None else initial[g]
                        state = self.model.read_state(row.index, pages[row.part])
                        assert state == history.state(row.index, num_tokens)
                    continue
                first = group.first_kept(num_tokens)
                blocks, skipped = table.kernel_ids.array, table.num_released * group.blocks_per_page
                tokens = self.model.read_tokens(row.index, blocks, first, num_tokens, skipped)
                assert tokens.tolist() == history.token_ids[first:num_tokens]

    def _assert_as_built_anew(self, batch: ForwardBatch, rows: list[Row]) -> None:
        """A batch may be the last one, changed in place."""
        fresh = BatchBuilder(self.pages, self.pool.plan.groups, CPU).build(rows)
        assert batch.num_decodes == fresh.num_decodes
        for name in ("input_ids", "positions", "seq_lens", "cu_seqlens_q", "has_initial_state"):
            assert torch.equal(getattr(batch, name), getattr(fresh, name)), name
        for name in ("query_lens", "context_lens", "follows", "logits_indices"):
            assert torch.equal(getattr(batch, name), getattr(fresh, name)), name
        for name, pages in fresh.groups.items():
            last = batch.groups[name]
            if isinstance(pages, StatePages):
                assert isinstance(last, StatePages)
                assert torch.equal(last.pages, pages.pages)
                assert torch.equal(last.initial_pages, pages.initial_pages)
                continue
            assert isinstance(last, TokenPages)
            assert torch.equal(last.slots, pages.slots)
            width = min(last.page_table.shape[1], pages.page_table.shape[1])
            assert torch.equal(last.page_table[:, :width], pages.page_table[:, :width])
            assert not last.page_table[:, width:].any() and not pages.page_table[:, width:].any()

    def assert_nothing_is_held(self) -> None:
        assert len(self.pages) == 0 and not self.scheduler.has_unfinished
        assert self.pool.allocator.num_free_slabs == self.pool.plan.num_slabs

    def _sequence(
        self, name: str, prompt: Sequence[int], max_tokens: int, salt: str | None = None
    ) -> Running:
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(name, tuple(prompt), params, cache_salt=salt)
        limit = len(prompt) + max_tokens
        running = Running(name, request, 0, 0, limit, Detokenizer(None, prompt, params))
        self.histories[name] = History(running.token_ids, self.layers)
        return running

    def _check_reading(self, row: Row, reading: Reading) -> None:
        history = self.histories[row.sequence.sequence_id]
        assert reading.samples == row.samples
        for first, tokens in reading.tokens.values():
            assert tokens.tolist() == history.token_ids[first : row.stop]
        for layer, (before, after) in reading.states.items():
            assert before == history.state(layer, row.start), "the state is of another position"
            assert after == history.state(layer, row.stop)
        if row.samples:
            assert reading.next_token % VOCAB == history.next_token(row.stop)
