"""Ctrl-C between two steps instead of within one.

Within a step Python is often called by C++ and by compiled code, which have no way to hand on a
`KeyboardInterrupt`: numba's compiler drops it, and torch ends the process where it imports its
own modules at the first call of an operation.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """What becomes of SIGINT while an engine runs.

    Only the main thread has signals; in others, and where SIGINT is not Python's to handle,
    nothing is held.
    """

    def __init__(self) -> None:
        self._before: Any = None  # the handler in whose place ours is
        self._holds = self._came = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Inside, `held` needs no change of handlers, which takes longer than all else in it."""
        if self._before is not None:
            yield
            return
        in_main_thread = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if in_main_thread else None
        if not callable(before):
            yield
            return
        self._before = before
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            self._before = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the first SIGINT waits for the end, where the handler that was there gets it.

        A second one doesn't wait.
        """
        with self.handled():
            self._holds = True
            try:
                yield
            finally:
                self._holds = False
                if self._came:
                    self._handle(signal.SIGINT, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._came = self._holds and not self._came
        if not self._came:
            self._before(number, frame)
