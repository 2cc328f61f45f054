"""HoldingScheduler: a scheduler whose sequences may come with pages, and leave them behind."""

from collections.abc import Sequence as Rows

from hybridrt.cache.finder import Match
from hybridrt.cache.place import Exports
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.config import EngineConfig
from hybridrt.engine.held import HeldRun
from hybridrt.engine.recorder import MOST_TAPS, Recorder
from hybridrt.engine.scheduler import Row, Scheduler
from hybridrt.engine.sequence import Sequence

MOST_RESTARTS = 3


class HoldingScheduler(Scheduler):
    """Lets sequences that have their pages already run as soon as a step has a row for them.

    A held sequence goes through as any other does: it may even have to give way, and is
    computed again. When it has finished or is taken out, its pages stay.

    Attributes:
        recorder: what looks on while one sequence is computed, every token of it; None: nobody.
    """

    def __init__(
        self, config: EngineConfig, pages: SequencePages, rope_switch_length: int | None = None
    ) -> None:
        super().__init__(config, pages, rope_switch_length)
        self._arrived: dict[str, Sequence] = {}  # with pages, and not running yet
        self._restarts = (("", 0), 0)
        self._lost: list[HeldRun] = []
        self.recorder: Recorder | None = None

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + len(self._arrived)

    @property
    def has_unfinished(self) -> bool:
        return super().has_unfinished or bool(self._arrived)

    def adopt(self, sequence: Sequence) -> None:
        """Lets a sequence run on that has its pages already, or else wait for them."""
        if sequence.sequence_id in self._pages:
            self._arrived[sequence.sequence_id] = sequence
        elif isinstance(sequence, HeldRun) and sequence.was_written_to:
            self._lost.append(sequence)
        else:
            self.add(sequence)

    def preempt(self, sequence: Sequence, *, has_failed: bool = False) -> None:
        """See `Scheduler.preempt`. One that was written to is lost."""
        super().preempt(sequence, has_failed=has_failed)
        self._lose(sequence)

    def take_lost(self) -> list[HeldRun]:
        """Those that had to give up pages which were written to, and can't be computed again."""
        lost, self._lost = self._lost, []
        self._cramped.difference_update(run.sequence_id for run in lost)
        return lost

    def _lose(self, sequence: Sequence) -> None:
        if isinstance(sequence, HeldRun) and sequence.was_written_to:
            del self._waiting[sequence.sequence_id]
            self._lost.append(sequence)

    def schedule(self) -> list[Row]:
        """The rows of the next step; see `Scheduler.schedule`."""
        while self._arrived and len(self._running) < self._config.max_num_seqs:
            name = next(iter(self._arrived))
            self._running[name] = sequence = self._arrived.pop(name)
            end = len(sequence.token_ids) - 1
            if end > sequence.num_computed:
                self._pages.reserve_exports(name, Exports([end]))
        rows = super().schedule()
        return rows if self.recorder is None else self._tap(rows, self.recorder)

    def _tap(self, rows: list[Row], recorder: Recorder) -> list[Row]:
        """Pages for the states that a recorder wants to see, and decodes first as before.

        A row ends at the first position for whose states there are none.
        """
        for index, row in enumerate(rows):
            if row.sequence.sequence_id == recorder.sequence_id:
                wanted = recorder.positions_inside(row.start, row.stop)
                count = self._pages.tap(recorder.sequence_id, wanted[:MOST_TAPS])
                if count < len(wanted):
                    rows[index] = row._replace(stop=wanted[count])
                    return sorted(rows, key=lambda row: not row.is_decode)
        return rows

    def _match(self, sequence: Sequence) -> Match | None:
        match = super()._match(sequence)
        if self.recorder is None or sequence.sequence_id != self.recorder.sequence_id:
            return match
        return None if match is None else match.unused

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence, and frees its pages unless it is a held one."""
        name = sequence.sequence_id
        if self._arrived.pop(name, None) is not None:
            self._running[name] = sequence
        if isinstance(sequence, HeldRun) and self._running.pop(name, None) is not None:
            self._cramped.discard(name)
        else:
            super().remove(sequence)

    def start_over(self) -> list[Sequence]:
        """Lets all sequences wait, whose pages are gone. Returns those that had finished."""
        self._running |= self._arrived
        self._arrived.clear()
        finished = super().start_over()
        for sequence in [*self._waiting.values()]:
            self._lose(sequence)
        return finished

    def goes_round(self, rows: Rows[Row]) -> bool:
        """Whether a sequence runs alone and still has to start over, again and again.

        Then the rest of the pool is held, and it will never find the room that it needs.
        """
        if len(rows) != 1 or self.num_running != 1:
            return False
        sequence = rows[0].sequence
        state = (sequence.sequence_id, len(sequence.token_ids))
        num_restarts = sequence.num_preemptions - sequence.num_failed_steps
        if state != self._restarts[0]:
            self._restarts = (state, num_restarts)
        return num_restarts - self._restarts[1] >= MOST_RESTARTS
