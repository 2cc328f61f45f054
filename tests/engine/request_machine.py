"""RequestMachine: sequences run, fail, fork and leave at random; tests say what must hold."""

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from hybridrt.cache.slabs import OutOfPages
from hybridrt.engine.scheduler import Row
from hybridrt.engine.sequence import Sequence
from tests.engine.content_model import VOCAB
from tests.engine.page_reader import PageReader, continuation

LONGEST = 60


class RequestMachine(RuleBasedStateMachine):
    """Subclasses make the `reader` in an `initialize` rule, and have one that adds sequences."""

    reader: PageReader
    alphabet: ClassVar[int] = VOCAB
    """Tokens of what a fork goes on with: 0 to one less."""

    def __init__(self) -> None:
        super().__init__()
        self.unfinished: dict[str, Sequence] = {}
        self.num_names = 0

    def check(self) -> None:
        """Called after every event."""

    def check_rows(self, rows: list[Row]) -> None:
        """Called with the rows of every step, behind it."""

    def note_fork(self, child: str) -> None:
        """Called when there is a fork."""

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
        self.check()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.running))
        self.reader.scheduler.preempt(self.unfinished[name])
        self.check()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        if len(self.running) == self.reader.config.max_num_seqs:
            return
        parent = self.unfinished[data.draw(st.sampled_from(self.running))]
        more = data.draw(st.lists(st.integers(0, self.alphabet - 1), min_size=1, max_size=9))
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
            self.note_fork(child)
        self.check()

    def teardown(self) -> None:
        for _ in range(3000):
            if not self.unfinished:
                break
            self.step()
        assert not self.unfinished, "someone starves"

    def step(self, *, fails: bool = False) -> None:
        if not self.unfinished:
            return
        rows = self.reader.step(fails=fails)
        assert rows, "there was something to do"
        self.check_rows(rows)
        self.check()
        for name, sequence in [*self.unfinished.items()]:
            if sequence.finish_reason:
                del self.unfinished[name]
                prompt, count = sequence.request.prompt_token_ids, sequence.num_output_tokens
                expected = continuation(prompt, count, self.reader.layers)
                assert sequence.output_token_ids == expected

    @property
    def running(self) -> list[str]:
        return sorted(self.reader.pages) if hasattr(self, "reader") else []

    def new_name(self) -> str:
        self.num_names += 1
        return f"sequence {self.num_names:03}"
