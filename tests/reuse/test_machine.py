"""Whatever comes, goes, fails and is dropped: what is found in the prefix cache is right.

Scheduler, pages, prefix cache and batches are the real ones, around a model that writes
what it is given. After every step all of the cache is read and counted again.
"""

import random
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from hybridrt.cache.spec import Window
from hybridrt.engine.scheduler import Row
from hybridrt.engine.sequence import Sequence
from tests.cache.stand_ins import plan_of
from tests.engine.content_model import state_layer, token_layer
from tests.engine.page_reader import PageReader
from tests.engine.request_machine import LONGEST, RequestMachine
from tests.reuse.cache_checks import assert_all, assert_everything_can_be_had, prefix_of

WINDOWS = (Window(1), Window(3), Window(7), Window(16), Window(5, chunked=True))
SALTS = (None, None, "a", "b")


@st.composite
def readers(draw: st.DrawFn) -> PageReader:
    page_size, block = draw(st.sampled_from([(1, 1), (4, 2), (4, 4), (8, 8), (16, 4)]))
    spare = st.integers(0, 3)
    tokens = st.builds(lambda n: token_layer(block, spare=n), spare)
    windows = st.builds(lambda w, n: token_layer(block, w, n), st.sampled_from(WINDOWS), spare)
    states = st.builds(lambda n: state_layer(40 * n), spare)
    kinds = draw(st.sampled_from([(tokens, windows, states), (tokens, states)]))
    layers = draw(st.lists(st.one_of(*kinds), min_size=1, max_size=5))
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


class ReuseMachine(RequestMachine):
    alphabet = 3

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str | None, list[list[int]]] = {salt: [] for salt in SALTS}
        self.looked_at: set[str] = set()  # forks too: they began with pages, and no hit

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

    @precondition(lambda self: hasattr(self, "reader"))
    @rule()
    def someone_needs_all_that_nobody_uses(self) -> None:
        assert_everything_can_be_had(self.reader.pages)
        assert_all(self.reader)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "reader"):
            pages = self.reader.pages
            assert len(pages) == 0 and not self.reader.scheduler.has_unfinished
            assert_everything_can_be_had(pages)
            assert prefix_of(pages).num_checkpoints == 0
            self.check()

    def check(self) -> None:
        assert_all(self.reader)

    def note_fork(self, child: str) -> None:
        self.looked_at.add(child)

    def check_rows(self, rows: list[Row]) -> None:
        for row in rows:
            name = row.sequence.sequence_id
            if name not in self.looked_at:
                self.looked_at.add(name)
                self.check_hit(row.sequence)

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


def common(a: list[int], b: list[int]) -> int:
    """Tokens with which both begin."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


TestReuse = ReuseMachine.TestCase
TestReuse.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, derandomize=True
)
