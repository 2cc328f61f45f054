"""A model whose next token follows from all tokens before it, read out of the cache.

It keeps every token in pages of the kind `full` and a running hash in a page of the
kind `state`. So a page that was lost, swapped or written too late gives another token,
and so does a state that is another sequence's or another position's.
"""

from collections.abc import Sequence

import torch

from hybridrt.cache.plan import CachePlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.spec import CacheSpec, State
from hybridrt.config import EngineConfig
from hybridrt.engine.detokenizer import Detokenizer
from hybridrt.engine.scheduler import Row, Scheduler
from hybridrt.engine.sequence import Sequence as Running
from hybridrt.request import Request, SamplingParams
from tests.cache.stand_ins import CPU, StandIn, plan_of

VOCAB = 1009


def specs(block: int) -> list[StandIn]:
    return [
        StandIn(CacheSpec("full", (State("tokens", (block,), torch.int64),), block)),
        StandIn(CacheSpec("state", (State("hash", (2,), torch.int64),))),
    ]


def small_plan(page_size: int, block: int, memory: int) -> CachePlan:
    return plan_of(specs(block), memory, page_size=page_size, kernel_block_size=block)


def next_token(token_ids: Sequence[int]) -> int:
    value = 1
    for position, token in enumerate(token_ids):
        value = _mix(value, position, token)
    return value


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """What must come behind a prompt."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def _mix(value: int, position: int, token: int) -> int:
    return (value * 31 + token + position) % VOCAB


class PageReader:
    """Scheduler, pages and this model, with the engine's loop around them."""

    def __init__(self, plan: CachePlan, **options: int) -> None:
        self.config = EngineConfig(model="page reader", **options)
        self.pool = Pool(plan, CPU, poison_freed_pages=True)
        self.pages = SequencePages(self.pool)
        self.scheduler = Scheduler(self.config, self.pages)
        block = plan.group("full").kernel_block_size
        assert block is not None
        self.block = block
        tokens, state = (
            stand_in.cache_spec.unpack(self.pool.layer_pages(row))[0].numpy()
            for row, stand_in in zip(plan.layers, specs(block), strict=True)
        )
        self.tokens, self.states = tokens, state

    def add(self, name: str, prompt: Sequence[int], max_tokens: int) -> Running:
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(name, tuple(prompt), params)
        limit = len(prompt) + max_tokens
        running = Running(name, request, 0, 0, limit, Detokenizer(None, prompt, params))
        self.scheduler.add(running)
        return running

    def step(self, *, fails: bool = False) -> list[Row]:
        """One step; a failing one writes to the cache, and is then undone."""
        rows = self.scheduler.schedule()
        chosen = [self._compute(row) for row in rows]
        if fails:
            self.scheduler.preempt_all(rows)
            return rows
        self.scheduler.commit(rows)
        for row, token in zip(rows, chosen, strict=True):
            if row.samples:
                row.sequence.append(token, ())
                if row.sequence.finish_reason:
                    self.scheduler.remove(row.sequence)
        return rows

    def _compute(self, row: Row) -> int:
        token_ids = row.sequence.token_ids
        full, state = self.pages.tables(row.sequence.sequence_id)
        blocks, (page,) = full.kernel_ids, state.kernel_ids
        if row.start == 0:
            self.states[page] = (0, 1)
        assert self.states[page, 0] == row.start, "the state is of another position"
        value = int(self.states[page, 1])
        for position in range(row.start, row.stop):
            self.tokens[blocks[position // self.block], position % self.block] = token_ids[position]
            value = _mix(value, position, token_ids[position])
        self.states[page] = (row.stop, value)
        stored = [
            int(self.tokens[blocks[i // self.block], i % self.block]) for i in range(row.stop)
        ]
        assert stored == token_ids[: row.stop], "the pages hold something else"
        return value

    def assert_nothing_is_held(self) -> None:
        assert len(self.pages) == 0 and not self.scheduler.has_unfinished
        assert self.pool.allocator.num_free_slabs == self.pool.plan.num_slabs
