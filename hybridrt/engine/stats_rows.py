"""What an engine does, as rows over time: how much runs, how fast, and what the pool holds.

A step costs two calls that count. Twice a second at most there is a row, and the last of them stay.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, get_args

from hybridrt.cache.finder import CacheNote
from hybridrt.cache.pool import Pool
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.engine.held import HeldSequences
from hybridrt.engine.scheduler import Row, Scheduler
from hybridrt.engine.stats import Counts, pool_data

ROW_SECONDS = 0.5
MOST_ROWS = 4096

StatsRow = dict[str, Any]
Listener = Callable[[StatsRow, dict[str, Any]], None]
"""Gets each new row, and what `details` says then."""


class StatsRecorder:
    """Counts what steps compute, and makes a row of it when some time has passed.

    One is made too when the engine has nothing more to do: so that the last row doesn't say that
    it works, and of what was done since a row that is old. Seconds in which it waited for requests
    count for no row.
    """

    def __init__(
        self, scheduler: Scheduler, pool: Pool, pages: SequencePages, held: HeldSequences
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._pages = pages
        self._held = held
        self._rows: deque[StatsRow] = deque(maxlen=MOST_ROWS)
        self._num_steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._counted = Counts()
        self._waits = True  # for requests
        self._since = 0.0  # when it last began to work, or the last row was made
        self._before = 0.0  # seconds of work before that, of which there is no row yet
        self._last_is_busy = False
        self._last_step, self._last_time = 0, time.monotonic()  # of the last row
        self.listener: Listener | None = None

    @property
    def rows(self) -> list[StatsRow]:
        """The last rows, the oldest first; see `LLM.stats_rows`."""
        if not self._scheduler.has_unfinished:
            self.update()
        return list(self._rows)

    def note_rows(self, rows: Iterable[Row], now: float) -> None:
        """Counts what a step is about to compute of prompts. `now` is of `time.monotonic`."""
        if self._waits:
            self._waits, self._since = False, now
        for sequence, start, stop in rows:
            if start < sequence.num_prompt_tokens:
                self._prompt_tokens += min(stop, sequence.num_prompt_tokens) - start

    def note_generated(self, num_tokens: int) -> None:
        """Counts new tokens."""
        self._generated_tokens += num_tokens

    def note_step(self) -> None:
        """Counts a step, and makes a row if it is time for one."""
        self._num_steps += 1
        self.update()

    def update(self) -> None:
        """Makes a row if it is time for one, or if there is nothing to do any more."""
        now, is_busy = time.monotonic(), self._scheduler.has_unfinished
        seconds = self._seconds(now) if is_busy else now - self._last_time
        is_due = seconds >= ROW_SECONDS and self._num_steps > self._last_step
        if is_due or (self._last_is_busy and not is_busy):
            self.add_row(now)
        elif not is_busy:
            self._before, self._waits = self._seconds(now), True

    def add_row(self, now: float) -> None:
        """Makes a row of what there is since the last. `now` is of `time.monotonic`."""
        row = self._row(max(self._seconds(now), 1e-9))
        self._rows.append(row)
        self._last_is_busy = self._scheduler.has_unfinished
        self._waits = not self._last_is_busy
        self._last_step, self._last_time = self._num_steps, now
        self._since, self._before = now, 0.0
        self._prompt_tokens = self._generated_tokens = 0
        if self.listener is not None:
            self.listener(row, self.details())

    def _seconds(self, now: float) -> float:
        """How long it has worked since the last row."""
        return self._before if self._waits else self._before + now - self._since

    def details(self) -> dict[str, Any]:
        """As `LLM.stats`, less the interval, of which the caller of that knows."""
        total = self._scheduler.stats.total.data()
        return {"total": total} | pool_data(self._pool, self._pages.prefix)

    def _row(self, seconds: float) -> StatsRow:
        total = self._scheduler.stats.total
        new, self._counted = total.since(self._counted), total.since(Counts())
        return {
            "time": time.time(),
            "step": self._num_steps,
            "seconds": seconds,
            "running": self._scheduler.num_running,
            "waiting": self._scheduler.num_waiting,
            "sessions": len(self._held),
            "prompt_tokens_per_second": self._prompt_tokens / seconds,
            "generated_tokens_per_second": self._generated_tokens / seconds,
            **self._bytes(),
            "hit_rate": new.cached_tokens / new.prompt_tokens if new.prompt_tokens else None,
            **{f"note_{n.replace(' ', '_')}": new.notes[n] for n in get_args(CacheNote)},
        }

    def _bytes(self) -> dict[str, int]:
        """Bytes of the pool by kind, padding included."""
        allocator, plan = self._pool.allocator, self._pool.plan
        sizes: dict[str, int] = {}
        for index, group in enumerate(plan.groups):
            counts = {
                "in_use": allocator.num_live_pages(index),
                "cached": allocator.num_cached_pages(index),
                "free": allocator.num_free_pages(index),
            }
            for what, count in counts.items():
                name = f"{what}_{group.kind}"
                sizes[name] = sizes.get(name, 0) + count * group.page_stride
        return sizes | {"free_slabs": allocator.num_free_slabs * plan.slab_bytes}
