"""The scheduler: which sequences run in the next step, and by how many tokens each.

First come, first served. Running sequences go before waiting ones; a sequence is
admitted when there is room for all the tokens it has, and when a running one finds no
room for its next token, the last admitted gives its pages back and waits, to be
computed again from its tokens.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.config import EngineConfig
from hybridrt.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """`num_tokens` tokens of a sequence from `start` on, to be computed in one step."""

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens

    @property
    def is_decode(self) -> bool:
        """One token that continues the sequence, as opposed to a chunk of a prefill."""
        return self.num_tokens == 1 and self.start > 0

    @property
    def samples(self) -> bool:
        """Whether the sequence's last token is among these, so that the next one follows."""
        return self.stop == len(self.sequence.token_ids)


class Scheduler:
    """Holds all unfinished sequences and the pages of those that run."""

    def __init__(self, config: EngineConfig, pages: SequencePages) -> None:
        self._config = config
        self._pages = pages
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self._running: dict[str, Sequence] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence at the end of the line."""
        self._waiting[sequence.sequence_id] = sequence

    def schedule(self) -> list[Row]:
        """The rows of the next step, decodes first. Empty only if nothing is unfinished."""
        num_running = len(self._running)
        rows = self._continue_running()
        if len(self._running) == num_running:  # nobody had to give way
            rows += self._admit_waiting(sum(row.num_tokens for row in rows))
        return sorted(rows, key=lambda row: not row.is_decode)

    def commit(self, rows: Iterable[Row]) -> None:
        """Says that these rows have been computed."""
        for row in rows:
            row.sequence.num_computed = row.stop
            self._pages.commit(row.sequence.sequence_id, row.stop)

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence, finished or not, and frees its pages."""
        if self._running.pop(sequence.sequence_id, None) is None:
            del self._waiting[sequence.sequence_id]
        else:
            self._pages.free(sequence.sequence_id)

    def preempt(self, sequence: Sequence) -> None:
        """Takes the pages of a running sequence, which will be computed again."""
        del self._running[sequence.sequence_id]
        self._pages.free(sequence.sequence_id)
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        self._waiting[sequence.sequence_id] = sequence
        self._waiting.move_to_end(sequence.sequence_id, last=False)

    def preempt_all(self, rows: Iterable[Row]) -> None:
        """After a step that failed: what it wrote into states can't be told, so start over."""
        in_rows = {row.sequence.sequence_id for row in rows}
        for sequence_id in reversed([*self._running]):  # so that they wait in their order
            if sequence_id in in_rows:
                self.preempt(self._running[sequence_id])

    def _continue_running(self) -> list[Row]:
        rows: list[Row] = []
        budget = self._config.max_num_batched_tokens
        for sequence_id, sequence in [*self._running.items()]:
            if not budget:
                break
            if sequence_id in self._running and self._make_room(sequence):
                rows.append(self._row(sequence, budget))
                budget -= rows[-1].num_tokens
        return rows

    def _make_room(self, sequence: Sequence) -> bool:
        """Room for all tokens of a running sequence, if need be by preempting the last."""
        while True:
            missing = len(sequence.token_ids) - self._pages.num_tokens(sequence.sequence_id)
            if missing <= 0:
                return True
            if self._pages.can_extend(sequence.sequence_id, missing):
                self._pages.extend(sequence.sequence_id, missing)
                return True
            last = next(reversed(self._running.values()))
            self.preempt(last)
            if last is sequence:
                return False

    def _admit_waiting(self, num_scheduled: int) -> list[Row]:
        rows: list[Row] = []
        budget = self._config.max_num_batched_tokens - num_scheduled
        while self._waiting and budget and len(self._running) < self._config.max_num_seqs:
            sequence = next(iter(self._waiting.values()))
            if not self._pages.can_admit(len(sequence.token_ids)):
                break
            self._pages.admit(sequence.sequence_id, len(sequence.token_ids))
            self._running[sequence.sequence_id] = self._waiting.pop(sequence.sequence_id)
            rows.append(self._row(sequence, budget))
            budget -= rows[-1].num_tokens
        return rows

    def _row(self, sequence: Sequence, budget: int) -> Row:
        left = len(sequence.token_ids) - sequence.num_computed
        return Row(sequence, sequence.num_computed, min(left, budget))
