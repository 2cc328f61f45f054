"""Ctrl-C between two steps instead of within one.

Within a step Python is often called by C++ and by compiled code, which have no way to hand on a
`KeyboardInterrupt`: numba's compiler drops it, and torch ends the process where it imports its
own modules at the first call of an operation.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class InterruptsHeld:
    """Inside, the first SIGINT waits for the end, where the handler that was there gets it.

    A second one doesn't wait. Only the main thread has signals; in others, and where SIGINT is
    not Python's to handle, nothing is held.
    """

    def __enter__(self) -> None:
        self._came = False
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._hold)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is None:
            return
        signal.signal(signal.SIGINT, self._before)
        if self._came:
            self._before(signal.SIGINT, None)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if not self._came:
            self._came = True
            return
        self._came = False
        self._before(number, frame)
