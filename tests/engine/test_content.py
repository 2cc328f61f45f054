"""Whatever happens to sequences, each finds its own tokens and states in the cache.

Scheduler, pages and batches are the real ones; the model writes what it is given and
everything that a live sequence could still see is read again at every step.
"""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from hybridrt.cache.plan import CachePlan
from hybridrt.cache.slabs import OutOfPages
from hybridrt.cache.spec import Window
from hybridrt.engine.sequence import Sequence
from tests.cache.stand_ins import StandIn, plan_of
from tests.engine.content_model import VOCAB, state_layer, token_layer
from tests.engine.page_reader import PageReader, continuation
from tests.engine.request_machine import LONGEST, RequestMachine

WINDOWS = (
    Window(1),
    Window(3),
    Window(7),
    Window(16),
    Window(5, chunked=True),
    Window(12, chunked=True),
)


def tight_plan(layers: list[StandIn], page_size: int, block: int, factor: float) -> CachePlan:
    """A plan with `factor` times the slabs that a sequence of `LONGEST` tokens takes."""
    plan = plan_of(layers, 2**17, page_size=page_size, kernel_block_size=block)
    return replace(plan, num_slabs=int(plan.slabs_for(LONGEST) * factor))


@st.composite
def readers(draw: st.DrawFn) -> PageReader:
    page_size, block = draw(st.sampled_from([(1, 1), (4, 2), (8, 8), (16, 4), (33, 1)]))
    spare = st.integers(0, 3)
    tokens = st.builds(lambda n: token_layer(block, spare=n), spare)
    windows = st.builds(lambda w, n: token_layer(block, w, n), st.sampled_from(WINDOWS), spare)
    states = st.builds(lambda n: state_layer(40 * n), spare)
    layers = draw(st.lists(st.one_of(tokens, windows, states), min_size=1, max_size=7))
    plan = tight_plan(layers, page_size, block, draw(st.sampled_from([1.0, 1.3, 2.5, 8.0])))
    options: dict[str, Any] = {
        "max_num_seqs": draw(st.integers(1, 5)),
        "max_num_batched_tokens": draw(st.sampled_from([1, 2, 7, 16, 64])),
    }
    return PageReader(plan, layers, **options)


class ContentMachine(RequestMachine):
    @initialize(reader=readers())
    def start(self, reader: PageReader) -> None:
        self.reader = reader

    @rule(prompt_tokens=st.integers(1, 40), max_tokens=st.integers(1, 20), seed=st.integers(0, 99))
    def add(self, prompt_tokens: int, max_tokens: int, seed: int) -> None:
        name = self.new_name()
        prompt = [(seed * 31 + 7 * token) % VOCAB for token in range(prompt_tokens)]
        self.unfinished[name] = self.reader.add(name, prompt, max_tokens)

    @invariant()
    def nobody_else_holds_pages(self) -> None:
        if hasattr(self, "reader"):
            assert self.reader.scheduler.has_unfinished == bool(self.unfinished)
            assert set(self.reader.pages) <= self.unfinished.keys()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "reader"):
            self.reader.assert_nothing_is_held()


TestContent = ContentMachine.TestCase
TestContent.settings = settings(
    max_examples=75, stateful_step_count=30, deadline=None, derandomize=True
)


@pytest.mark.parametrize(
    ("memory", "page_size", "block"), [(2**15, 4, 2), (2**20, 16, 4), (2**22, 8, 8)]
)
def test_long_traffic_of_all_kinds_reads_back_what_it_wrote(
    memory: int, page_size: int, block: int
) -> None:
    layers = [token_layer(block), token_layer(block, spare=2), state_layer(), state_layer(100)]
    layers += [token_layer(block, Window(40)), token_layer(block, Window(24, chunked=True), 1)]
    layers += [state_layer(100), state_layer(), token_layer(block, Window(40))]
    plan = plan_of(layers, memory, page_size=page_size, kernel_block_size=block)
    reader = PageReader(plan, layers, max_num_seqs=24, max_num_batched_tokens=96)
    draw, happened = random.Random(memory), Counter[str]()
    live: dict[str, Sequence] = {}
    longest = min(150, plan.longest_sequence() or 150)
    for step in range(400):
        for _ in range(draw.choice([0, 0, 1, 2]) if len(live) < 30 else 0):
            prompt = [draw.randrange(VOCAB) for _ in range(draw.randint(1, longest - 1))]
            most = draw.randint(1, longest - len(prompt))
            name = f"request {step} {len(live)}"
            live[name] = reader.add(name, prompt, most)
        running = sorted(reader.pages)
        event = draw.choices(["none", "fail", "abort", "preempt", "fork"], [20, 1, 2, 1, 2])[0]
        if running and event != "none":
            happened[event] += happen(event, reader, live, draw, f"child {step}", longest)
        reader.step(fails=event == "fail")
        happened["finish"] += sum(1 for sequence in live.values() if sequence.finish_reason)
        live = {name: s for name, s in live.items() if not s.finish_reason}
    while live:
        assert reader.step()
        live = {name: s for name, s in live.items() if not s.finish_reason}
    reader.assert_nothing_is_held()
    assert min(happened[event] for event in ("abort", "preempt", "fork", "finish")) >= 10, happened


def happen(
    event: str,
    reader: PageReader,
    live: dict[str, Sequence],
    draw: random.Random,
    child: str,
    longest: int,
) -> bool:
    """Lets something happen to one that runs. Whether it could."""
    chosen = draw.choice(sorted(reader.pages))
    if event == "abort":
        reader.scheduler.remove(live.pop(chosen))
    elif event == "preempt":
        reader.scheduler.preempt(live[chosen])
    elif event == "fork":
        room = longest - reader.pages.num_committed(chosen)
        if room < 2 or len(reader.pages) == reader.config.max_num_seqs:
            return False
        more = [draw.randrange(VOCAB) for _ in range(draw.randint(1, min(8, room - 1)))]
        try:
            live[child] = reader.fork(live[chosen], child, more, min(6, room - len(more)))
        except OutOfPages:
            return False
    return True


@pytest.mark.parametrize("survivor", [0, 3])
def test_bug_11_a_batch_that_shrinks_writes_into_no_freed_page(survivor: int) -> None:
    layers = [token_layer(4), state_layer(), token_layer(4, Window(6))]
    plan = plan_of(layers, 2**14, page_size=8, kernel_block_size=4)
    reader = PageReader(plan, layers)
    sequences = [reader.add(f"{n}", range(n, n + 5 + n), 20) for n in range(4)]
    reader.step()
    for index, sequence in enumerate(sequences):
        reader.step()
        reader.step()  # this batch moved on from the last, in place
        if index != survivor:
            reader.scheduler.remove(sequence)
        reader.pool.assert_nobody_writes_into_free_pages()
    while reader.scheduler.has_unfinished:
        reader.step()
    prompt = sequences[survivor].request.prompt_token_ids
    assert sequences[survivor].output_token_ids == continuation(prompt, 20, layers)
