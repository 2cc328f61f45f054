"""The scheduler: which sequences run in the next step, and by how many tokens each.

First come, first served. Running sequences go before waiting ones; a sequence is
admitted when there is room for all the tokens it has, and when a running one finds no
room for its next token, the last admitted gives its pages back and waits, to be
computed again from its tokens. One that had to give way to itself needs the whole pool:
from then on it runs alone, and grows by a page at a time as the plan counts it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import repeat
from types import MappingProxyType
from typing import NamedTuple

from hybridrt.cache.finder import Match
from hybridrt.cache.place import NO_EXPORTS, Exports
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.slabs import OutOfPages
from hybridrt.config import EngineConfig
from hybridrt.engine.sequence import Sequence, tree_name
from hybridrt.engine.stats import ReuseStats

REGULAR = 256  # tokens between checkpoints that are made while there are free pages
MOST_REGULAR = 16  # of them for one prompt
NO_SIBLINGS: Mapping[str, Iterable[int]] = MappingProxyType({})


class Row(NamedTuple):
    """The tokens `start` to `stop - 1` of a sequence, to be computed in one step."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def is_decode(self) -> bool:
        """One token that continues the sequence, as opposed to a chunk of a prefill."""
        return self.stop - self.start == 1 and self.start > 0

    @property
    def samples(self) -> bool:
        """Whether the sequence's last token is among these, so that the next one follows."""
        return self.stop == len(self.sequence.token_ids)


class Scheduler:
    """Holds all unfinished sequences and the pages of those that run."""

    def __init__(
        self, config: EngineConfig, pages: SequencePages, rope_switch_length: int | None = None
    ) -> None:
        self._config = config
        self._rope_switch_length = rope_switch_length
        self._pages = pages
        self._page_size = config.page_size
        self.stats = ReuseStats()
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self._running: dict[str, Sequence] = {}
        self._cramped: set[str] = set()  # those that found no room though they ran alone

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

    def adopt(self, sequence: Sequence) -> None:
        """Lets a sequence run on that has its pages already, or else wait for them."""
        if sequence.sequence_id in self._pages:
            self._running[sequence.sequence_id] = sequence
        else:
            self.add(sequence)

    def schedule(self) -> list[Row]:
        """The rows of the next step, decodes first. Empty only if nothing is unfinished."""
        num_running = len(self._running)
        decodes, chunks = self._continue_running()
        none_gave_way = len(self._running) == num_running
        if self._waiting and (none_gave_way or not (decodes or chunks)):
            num_scheduled = len(decodes) + sum(row.num_tokens for row in chunks)
            for row in self._admit_waiting(num_scheduled):
                (decodes if row.is_decode else chunks).append(row)
        return decodes + chunks

    def commit(
        self,
        rows: Iterable[Row],
        tokens: Iterable[int | None],
        sibling_tokens: Mapping[str, Iterable[int]] = NO_SIBLINGS,
    ) -> list[Sequence]:
        """Says that these rows have been computed, and gives each its next token, if any.

        Siblings of a sequence get theirs too if they find room beside it, and wait otherwise.
        Sequences that end with it are removed. Returns them.
        """
        finished: list[Sequence] = []
        for (sequence, _, stop), token in zip(rows, tokens, strict=True):
            sequence.num_computed = stop
            self._pages.commit(sequence.sequence_id, stop, sequence.token_ids)
            if token is None:
                continue
            if sequence.siblings:
                finished += self._branch(sequence, sibling_tokens.get(sequence.sequence_id, ()))
            if self._take_token(sequence, token):
                finished.append(sequence)
        return finished

    def all_go_on(self, rows: list[Row], tokens: Iterable[int] | None) -> bool:
        """Whether the next step is of the same sequences, on the same pages, if they draw these.

        None: whatever they draw. Of rows that decode; where text has to be looked at it is no.
        """
        if self.num_waiting or self._pages.unsettled or len(rows) != len(self._running):
            return False
        stays_put = self._pages.stays_put
        return all(
            sequence.surely_goes_on(token) and stays_put(sequence.sequence_id, stop)
            for (sequence, _, stop), token in zip(rows, tokens or repeat(None), strict=False)
        )

    def _take_token(self, sequence: Sequence, token: int) -> bool:
        """Returns whether the token was the last."""
        sequence.append(token)
        if sequence.finish_reason is None:
            return False
        self.remove(sequence)
        return True

    def _branch(self, sequence: Sequence, tokens: Iterable[int]) -> list[Sequence]:
        """Lets siblings go on behind a prompt. Returns those that end with their first token."""
        finished: list[Sequence] = []
        for token in tokens:
            sibling = sequence.siblings[0]
            if len(self._running) == self._config.max_num_seqs:
                break
            if not self._fork(sequence, sibling.sequence_id):
                break
            self._running[sibling.sequence_id] = sequence.siblings.pop(0)
            sibling.begin_behind(sequence)
            if self._take_token(sibling, token):
                finished.append(sibling)
        while sequence.siblings:  # they are next in line
            sibling = sequence.siblings.pop()
            self._waiting[sibling.sequence_id] = sibling
            self._waiting.move_to_end(sibling.sequence_id, last=False)
        return finished

    def _fork(self, sequence: Sequence, child: str) -> bool:
        with suppress(OutOfPages):
            self._pages.fork(sequence.sequence_id, child)
            return True
        return False

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence, finished or not, and frees its pages."""
        self._cramped.discard(sequence.sequence_id)
        if sequence.sequence_id in self._running:
            self._pages.finish(sequence.sequence_id, sequence.token_ids)
            del self._running[sequence.sequence_id]
        else:
            self._waiting.pop(sequence.sequence_id, None)  # not there: a sibling, to be branched

    def preempt(self, sequence: Sequence, *, has_failed: bool = False) -> None:
        """Takes the pages of a running sequence, which will be computed again.

        What the prefix cache can keep of them it finds there, unless a step has failed that
        may have changed its states.
        """
        if has_failed:
            self._pages.free(sequence.sequence_id)
        else:
            self._pages.finish(sequence.sequence_id, sequence.token_ids)
        del self._running[sequence.sequence_id]
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        sequence.num_failed_steps += has_failed
        self._waiting[sequence.sequence_id] = sequence
        self._waiting.move_to_end(sequence.sequence_id, last=False)

    def preempt_all(self, rows: Iterable[Row]) -> None:
        """After a step that failed: what it wrote into states can't be told, so start over."""
        in_rows = {row.sequence.sequence_id for row in rows}
        for sequence_id in reversed([*self._running]):  # so that they wait in their order
            if sequence_id in in_rows:
                self.preempt(self._running[sequence_id], has_failed=True)

    def start_over(self) -> list[Sequence]:
        """Lets all sequences wait, whose pages are gone. Returns those that had finished."""
        running = [*self._running.values()]
        self._running.clear()
        self._cramped.clear()
        for sequence in reversed(running):  # so that they wait in their order
            if sequence.finish_reason is None:
                sequence.num_preemptions += 1
                self._waiting[sequence.sequence_id] = sequence
                self._waiting.move_to_end(sequence.sequence_id, last=False)
        for sequence in self._waiting.values():
            sequence.num_computed = 0
        return [sequence for sequence in running if sequence.finish_reason is not None]

    def _continue_running(self) -> tuple[list[Row], list[Row]]:
        """The decodes, and the chunks of prefills, of the sequences that run."""
        decodes: list[Row] = []
        chunks: list[Row] = []
        budget = self._config.max_num_batched_tokens
        running, capacity = self._running, self._pages.capacity
        for name, sequence in [*running.items()]:
            if not budget:
                break
            if name not in running:  # it gave way to another
                continue
            row = self._next_row(sequence, budget)
            if row.stop > capacity(name):
                row = self._make_room(row)
            if row is not None:
                num_tokens = row.stop - row.start
                (decodes if num_tokens == 1 and row.start else chunks).append(row)
                budget -= num_tokens
        return decodes, chunks

    def _make_room(self, row: Row) -> Row | None:
        """Room for a running sequence's next tokens, if need be by preempting the last.

        Returns the row, or fewer tokens of it where a window has no pages for all, or None
        if the sequence itself had to give way.
        """
        sequence = row.sequence
        num_tokens = len(sequence.token_ids)
        while True:
            for part in _parts(row):
                with suppress(OutOfPages):
                    self._pages.extend(sequence.sequence_id, num_tokens, part.stop)
                    return part
            if self._pages.forget_exports():
                continue
            last = next(reversed(self._running.values()))
            self.preempt(last)
            if last is sequence:
                if not self._running:
                    self._cramped.add(sequence.sequence_id)
                return None

    def _admit_waiting(self, num_scheduled: int) -> list[Row]:
        rows: list[Row] = []
        budget = self._config.max_num_batched_tokens - num_scheduled
        while self._waiting and budget and len(self._running) < self._config.max_num_seqs:
            if not self._cramped.isdisjoint(self._running):
                break
            sequence = next(iter(self._waiting.values()))
            row = self._admit(sequence, budget)
            if row is None:
                break
            self._running[sequence.sequence_id] = self._waiting.pop(sequence.sequence_id)
            rows.append(row)
            budget -= row.num_tokens
        return rows

    def _admit(self, sequence: Sequence, budget: int) -> Row | None:
        """Pages for a waiting sequence. One that would run alone takes what there is.

        It waits a step if the pages that it lacks are being computed for another.
        """
        if sequence.sequence_id in self._cramped:
            self._pages.forget_cached()  # between what is cached its pages would be scattered
        match = self._match(sequence)
        if match is not None and self._pages.is_coming(match):
            return None
        row = self._admit_behind(match, sequence, budget)
        if row is None and match is not None and match.position and not self._running:
            row = self._admit_behind(match.unused, sequence, budget)
        return row

    def _admit_behind(self, match: Match | None, sequence: Sequence, budget: int) -> Row | None:
        sequence.num_computed = 0 if match is None else match.position
        row, num_tokens = self._next_row(sequence, budget), len(sequence.token_ids)
        salt, exports = self._salt(sequence), self._exports(sequence, match)
        for part in [row] if self._running else _parts(row):
            try:
                name = sequence.sequence_id
                self._pages.admit(name, num_tokens, part.stop, match, salt, exports)
            except OutOfPages:
                continue
            if sequence.cache_note is None:
                sequence.note_cached(match)
                self.stats.record(sequence)
            return part
        return None

    def _match(self, sequence: Sequence) -> Match | None:
        """What the cache has of a sequence. All tokens are computed whose logits are wanted."""
        if sequence.next_prompt_logprob is not None:
            return None
        return self._pages.match(sequence.token_data, self._salt(sequence))

    def _salt(self, sequence: Sequence) -> str | None:
        num_tokens = len(sequence.token_ids)
        return tree_name(sequence.request.cache_salt, num_tokens, self._rope_switch_length)

    def _exports(self, sequence: Sequence, match: Match | None) -> Exports:
        """Where this sequence's states are to be kept while they are computed.

        At the last token but one, since the last is always computed; where its tokens part
        from those that were seen before; and while there are free pages at regular places.
        """
        if match is None or not self._pages.keeps_states:
            return NO_EXPORTS
        start, end = match.position, len(sequence.token_ids) - 1
        interval = self._config.checkpoint_interval
        step = interval or max(REGULAR, -(-end // (REGULAR * MOST_REGULAR)) * REGULAR)
        wanted = [end] if start < end else []
        if start < match.matched < end:
            wanted.append(match.matched)
        places = range(start // step * step + step, end, step)
        if not places:
            return Exports(wanted)
        regular = [place for place in reversed(places) if place != match.matched]
        return Exports(wanted, regular) if interval is None else Exports([*wanted, *regular])

    def _next_row(self, sequence: Sequence, budget: int) -> Row:
        start, stop = sequence.num_computed, len(sequence.token_ids)
        if self._cramped and sequence.sequence_id in self._cramped:
            budget = min(budget, self._page_size - start % self._page_size)
        return Row(sequence, start, stop if stop - start <= budget else start + budget)


def _parts(row: Row) -> Iterator[Row]:
    """The row, its first half, its first quarter ... and its first token."""
    num_tokens = row.num_tokens
    while num_tokens:
        yield row._replace(stop=row.start + num_tokens)
        num_tokens //= 2
