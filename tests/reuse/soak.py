"""Requests without end on a pool that is always full, each read again at every step."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hybridrt.cache.slabs import OutOfPages
from hybridrt.cache.spec import Window
from hybridrt.engine.sequence import Sequence
from tests.cache.stand_ins import plan_of
from tests.engine.content_model import state_layer, token_layer
from tests.engine.page_reader import PageReader, continuation
from tests.reuse.cache_checks import (
    assert_all,
    assert_everything_can_be_had,
    branches,
    prefix_of,
)

PAGE, BLOCK = 8, 4
LONGEST = 120
ALPHABET = 3  # tokens of prompts: so few that unrelated ones begin alike now and then
MOST_IN_LINE = 14


def full_reader(*, with_windows: bool = True) -> PageReader:
    """All kinds of layers, and room for eight of the longest sequences, four of which may run.

    Only without windows sequences are folded.
    """
    layers = [token_layer(BLOCK), token_layer(BLOCK, spare=2), state_layer(), state_layer(60)]
    if with_windows:
        layers += [token_layer(BLOCK, Window(20)), token_layer(BLOCK, Window(12, chunked=True), 1)]
    plan = plan_of(layers, 2**20, page_size=PAGE, kernel_block_size=BLOCK)
    plan = replace(plan, num_slabs=8 * plan.slabs_for(LONGEST))
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64}
    return PageReader(plan, layers, enable_prefix_caching=True, **options)


@dataclass
class Soak:
    """Adds, aborts, forks and steps at random until so many requests have come and gone."""

    num_requests: int
    seed: int = 0
    reader: PageReader = field(default_factory=full_reader)
    live: dict[str, Sequence] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.texts: dict[str | None, list[list[int]]] = {}

    def run(self) -> Iterator[int]:
        """Gives the number of requests that have gone, after every step."""
        while self.live or self.happened["came"] < self.num_requests:
            while len(self.live) < MOST_IN_LINE and self.happened["came"] < self.num_requests:
                self.add()
            self.disturb()
            fresh = [s for s in self.live.values() if s.cache_note is None]
            fails = self.draw.random() < 0.01
            self.happened["failed steps"] += fails
            rows = self.reader.step(fails=fails)
            assert rows or not self.live, "there was something to do"
            self.note_hits(fresh)
            self.take_out_finished()
            yield self.happened["gone"]
        assert_all(self.reader)
        assert_everything_can_be_had(self.reader.pages)
        assert prefix_of(self.reader.pages).num_checkpoints == 0

    def add(self) -> None:
        """A new text, one that goes on where another ended, or one that parts from it."""
        draw = self.draw
        salt = draw.choice([None, None, "a", "b", f"tenant {draw.randrange(10**9)}"])
        texts = self.texts.get(salt) or [[]]
        text = draw.choice(texts)
        text = text[: draw.choice([len(text), draw.randint(0, len(text))])]
        more = [draw.randrange(ALPHABET) for _ in range(draw.choice([1, 3, 20, 50]))]
        prompt = [*text, *more][: LONGEST - 20]
        self.happened["came"] += 1
        name = f"request {self.happened['came']}"
        self.live[name] = self.reader.add(name, prompt, draw.randint(1, 20), salt)

    def disturb(self) -> None:
        event = self.draw.choices(["none", "abort", "preempt", "fork"], [30, 3, 1, 1])[0]
        running = sorted(self.reader.pages)
        if event == "abort" and self.live:
            self.take_out(self.draw.choice(sorted(self.live)), "abort")
        elif event == "preempt" and running:
            self.reader.scheduler.preempt(self.live[self.draw.choice(running)])
            self.happened["preempt"] += 1
        elif event == "fork" and running and len(running) < 4:
            self.fork(self.live[self.draw.choice(running)])

    def fork(self, parent: Sequence) -> None:
        if self.reader.pages.num_committed(parent.sequence_id) > LONGEST - 20:
            return
        name, more = f"fork {self.happened['fork']}", [self.draw.randrange(ALPHABET)]
        try:
            self.live[name] = self.reader.fork(parent, name, more, 10)
        except OutOfPages:
            return
        self.happened["fork"] += 1

    def note_hits(self, fresh: list[Sequence]) -> None:
        for sequence in fresh:
            if sequence.cache_note is not None and sequence.sequence_id.startswith("request"):
                self.notes[sequence.cache_note] += 1
                self.prompt_tokens += sequence.num_prompt_tokens
                self.cached_tokens += sequence.num_cached_tokens

    def take_out_finished(self) -> None:
        for name, sequence in [*self.live.items()]:
            if sequence.finish_reason:
                prompt, count = sequence.request.prompt_token_ids, sequence.num_output_tokens
                if self.draw.random() < 0.1:
                    expected = continuation(prompt, count, self.reader.layers)
                    assert sequence.output_token_ids == expected
                    self.happened["compared"] += 1
                salt = sequence.request.cache_salt
                if salt in (None, "a", "b"):
                    texts = self.texts.setdefault(salt, [])
                    texts.append(sequence.token_ids)
                    del texts[:-8]
                self.take_out(name, "finish")

    def take_out(self, name: str, how: str) -> None:
        sequence = self.live.pop(name)
        if sequence.finish_reason is None:
            self.reader.scheduler.remove(sequence)
        del self.reader.histories[name]
        self.happened[how] += 1
        self.happened["gone"] += name.startswith("request")

    def sizes(self) -> dict[str, int]:
        """How much each structure holds that could grow.

        But for windows in line, of which there are at most as many as pages, used or not.
        """
        pages, prefix = self.reader.pages, prefix_of(self.reader.pages)
        assert pages._reuse is not None
        return {
            "nodes": prefix.num_nodes,
            "ghosts": prefix._num_ghosts,
            "branches": sum(1 for _ in branches(prefix)),
            "roots": len(prefix._roots),
            "leaves": len(prefix._leaves),
            "checkpoints in line": sum(map(len, prefix._lines)),
            "on the way": len(pages._reuse._in_flight),
            "unsettled": len(pages.unsettled),
            "pages": sum(
                len(pages._pool.allocator.claims(g)) - pages._pool.allocator.claims(g).count(0)
                for g in range(len(pages._pool.plan.groups))
            ),
        }
