"""Whatever comes, goes, fails and is dropped: what is found in the prefix cache is right.

Scheduler, pages, prefix cache and batches are the real ones, around a model that writes
what it is given. After every step all of the cache is read and counted again.
"""

import random
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hybridrt.cache.slabs import OutOfPages
from hybridrt.cache.spec import Window
from hybridrt.engine.sequence import Sequence
from tests.cache.stand_ins import plan_of
from tests.engine.content_model import state_layer, token_layer
from tests.engine.page_reader import PageReader, continuation
from tests.reuse.cache_checks import assert_all, assert_everything_can_be_had, prefix_of

WINDOWS = (Window(1), Window(3), Window(7), Window(16), Window(5, chunked=True))
LONGEST = 60
SALTS = (None, None, "a", "b")


@st.composite
def readers(draw: st.DrawFn) -> PageReader:
    page_size, block = draw(st.sampled_from([(1, 1), (4, 2), (4, 4), (8, 8), (16, 4)]))
    spare = st.integers(0, 3)
    tokens = st.builds(lambda n: token_layer(block, spare=n), spare)
    windows = st.builds(lambda w, n: token_layer(block, w, n), st.sampled_from(WINDOWS), spare)
    states = st.builds(lambda n: state_layer(40 * n), spare)
    layers = draw(st.lists(st.one_of(tokens, windows, states), min_size=1, max_size=5))
    plan = plan_of(layers, 2**17, page_size=page_size, kernel_block_size=block)
    factor = draw(st.sampled_from([1.0, 1.3, 2.5, 8.0]))
    plan = replace(plan, num_slabs=int(plan.slabs_for(LONGEST) * factor))
    options: dict[str, Any] = {
        "max_num_seqs": draw(st.integers(1, 5)),
        "max_num_batched_tokens": draw(st.sampled_from([1, 2, 7, 16, 64])),
        "enable_prefix_caching": True,
        "checkpoint_interval": draw(st.sampled_from([None, None, 1, 5, 16])),
        "checkpoint_memory": draw(st.sampled_from([None, None, 1, 2 * plan.slab_bytes])),
    }
    return PageReader(plan, layers, **options)


class ReuseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.unfinished: dict[str, Sequence] = {}
        self.seen: dict[str | None, list[list[int]]] = {salt: [] for salt in SALTS}
        self.forked: set[str] = set()  # they began with pages, and no hit
        self.num_names = 0

    @initialize(reader=readers())
    def start(self, reader: PageReader) -> None:
        self.reader = reader

    @precondition(lambda self: len(self.unfinished) < 9)
    @rule(
        salt=st.sampled_from(SALTS),
        shared=st.integers(0, 40),
        more=st.integers(0, 12),
        max_tokens=st.integers(1, 20),
        seed=st.integers(0, 5),
        copies=st.sampled_from([1, 1, 1, 2, 3]),
    )
    def add(
        self, salt: str | None, shared: int, more: int, max_tokens: int, seed: int, copies: int
    ) -> None:
        """A prompt that begins as an earlier one did, its output included, and goes on alike."""
        draw = random.Random(seed)
        earlier = self.seen[salt] or [[draw.randrange(3) for _ in range(40)]]
        prompt = earlier[seed % len(earlier)][:shared]
        prompt = [*prompt, *(draw.randrange(3) for _ in range(more))][: LONGEST - 20] or [1]
        for _ in range(copies):
            name = self.new_name()
            self.unfinished[name] = self.reader.add(name, prompt, max_tokens, salt)

    @precondition(lambda self: self.unfinished)
    @rule(num_steps=st.integers(1, 6))
    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    @precondition(lambda self: self.unfinished)
    @rule()
    def step_that_fails(self) -> None:
        self.step(fails=True)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.unfinished)))
        self.reader.scheduler.remove(self.unfinished.pop(name))
        assert name not in self.reader.pages
        assert_all(self.reader)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.running))
        self.reader.scheduler.preempt(self.unfinished[name])
        assert_all(self.reader)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.lists(st.integers(0, 2), min_size=1, max_size=9))
    def fork(self, data: st.DataObject, more: list[int]) -> None:
        if len(self.running) == self.reader.config.max_num_seqs:
            return
        parent = self.unfinished[data.draw(st.sampled_from(self.running))]
        room = LONGEST - self.reader.pages.num_committed(parent.sequence_id)
        more, child = more[: room - 1], self.new_name()
        if not more:
            return
        try:
            running = self.reader.fork(parent, child, more, min(9, room - len(more)))
        except OutOfPages:
            assert child not in self.reader.pages
        else:
            self.unfinished[child] = running
            self.forked.add(child)
        assert_all(self.reader)

    @precondition(lambda self: hasattr(self, "reader"))
    @rule()
    def someone_needs_all_that_nobody_uses(self) -> None:
        assert_everything_can_be_had(self.reader.pages)
        assert_all(self.reader)

    def teardown(self) -> None:
        for _ in range(3000):
            if not self.unfinished:
                break
            self.step()
        assert not self.unfinished, "someone starves"
        if hasattr(self, "reader"):
            pages = self.reader.pages
            assert len(pages) == 0 and not self.reader.scheduler.has_unfinished
            assert_everything_can_be_had(pages)
            assert prefix_of(pages).num_checkpoints == 0
            assert_all(self.reader)

    def step(self, *, fails: bool = False) -> None:
        if not self.unfinished:
            return
        fresh = {n for n, s in self.unfinished.items() if s.cache_note is None} - self.forked
        rows = self.reader.step(fails=fails)
        assert rows, "there was something to do"
        for row in rows:
            if row.sequence.sequence_id in fresh:
                self.check_hit(row.sequence)
        assert_all(self.reader)
        for name, sequence in [*self.unfinished.items()]:
            if sequence.finish_reason:
                del self.unfinished[name]
                self.check_output(sequence)

    def check_hit(self, sequence: Sequence) -> None:
        """No more than what some other had begun with under the same salt."""
        salt = sequence.request.cache_salt
        prompt = list(sequence.request.prompt_token_ids)
        assert (sequence.cache_note == "hit") == (sequence.num_cached_tokens > 0)
        assert sequence.num_cached_tokens < len(prompt)
        others = [s.token_ids for s in self.unfinished.values() if s is not sequence]
        shared = [common(prompt, tokens) for tokens in [*self.seen[salt], *others]]
        assert sequence.num_cached_tokens <= max(shared, default=0)
        self.seen[salt].append(sequence.token_ids)

    def check_output(self, sequence: Sequence) -> None:
        prompt = sequence.request.prompt_token_ids
        expected = continuation(prompt, sequence.num_output_tokens, self.reader.layers)
        assert sequence.output_token_ids == expected

    @property
    def running(self) -> list[str]:
        return sorted(self.reader.pages) if hasattr(self, "reader") else []

    def new_name(self) -> str:
        self.num_names += 1
        return f"sequence {self.num_names:03}"


def common(a: list[int], b: list[int]) -> int:
    """Tokens with which both begin."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


TestReuse = ReuseMachine.TestCase
TestReuse.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, derandomize=True
)
