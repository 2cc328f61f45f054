"""An exception anywhere in the cache while sessions are at work: none of them is wrong afterwards.

What was asked for is asked for again. Steps alone are tried in tests/reuse/test_faults.py.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest

from hybridrt import LLM, SamplingParams, Session
from tests.reuse.cache_checks import (
    assert_everything_can_be_had,
    assert_pages_are_counted,
    assert_pins_are_right,
    assert_tree_is_sound,
)
from tests.reuse.fault_points import CACHE, Fault, Point, Unplugged, arm, called, points
from tests.session.open_sessions import EVERY_KIND, OTHER, PROMPT, cold, nothing_left, open_llm

Result = TypeVar("Result")
GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


def _open() -> LLM:
    """Without recorded steps, for which the cache does nothing else; recording takes its time."""
    return open_llm(EVERY_KIND, record_decode=False)


class User:
    """Does what sessions can do, with a fault on the way."""

    def __init__(self, llm: LLM, fault: Fault, path: Path) -> None:
        self.llm, self.fault, self.path = llm, fault, path

    def attempt(self, operation: Callable[[], Result]) -> Result:
        """Does it, again if the fault came upon it."""
        for _ in range(3):
            self.fault.is_armed = True
            try:
                return operation()
            except Unplugged:
                self.fault.is_armed = False
                self.check()
            finally:
                self.fault.is_armed = False
        raise AssertionError("it doesn't get over the fault")

    def check(self) -> None:
        assert_tree_is_sound(self.llm.engine.pages)
        assert_pins_are_right(self.llm.engine.pages)
        assert_pages_are_counted(self.llm.engine.pages)

    def goes_on(self, session: Session) -> None:
        """What a generation that is broken off has come to is part of the session."""

        def generate() -> None:
            self.fault.is_armed = False
            before = session.token_ids
            self.fault.is_armed = True
            given = session.generate(GREEDY).outputs[0].token_ids
            self.fault.is_armed = False
            assert given == cold(EVERY_KIND, before, GREEDY)

        self.attempt(generate)

    def patch(self) -> None:
        """A write on which a text goes on, and its undoing."""
        with self.llm.session(PROMPT) as session, session.layers[1].ablate():
            session.append(OTHER)
            assert session.was_written_to and session.logits is not None

    def run(self) -> None:
        llm, attempt = self.llm, self.attempt
        llm.add_request(PROMPT[:20], GREEDY, "a")
        attempt(llm.step)
        first = attempt(lambda: llm.session(PROMPT))
        self.goes_on(first)
        second = attempt(first.fork)
        attempt(lambda: llm.abort("a"))
        attempt(lambda: second.append(OTHER))
        self.goes_on(second)
        attempt(lambda: first.truncate(20, recompute=True))
        self.goes_on(first)
        attempt(lambda: [layer.read() for layer in first.layers])
        attempt(lambda: first.save(self.path))
        third = attempt(lambda: llm.load_session(self.path))
        self.goes_on(third)
        attempt(self.patch)
        attempt(lambda: third.trace(OTHER, every=4))
        self.goes_on(third)
        attempt(llm.cache_map)
        attempt(llm.stats)
        for session in (second, third, first):
            attempt(session.close)


@functools.cache
def _called() -> frozenset[Point]:
    llm = _open()

    def run(faults: Sequence[Fault]) -> None:
        arm(faults, True)
        with TemporaryDirectory() as directory:
            User(llm, Fault(), Path(directory) / "session").run()

    return called(points(CACHE), run)


@pytest.mark.parametrize("point", [*points(CACHE)], ids=str)
def test_sessions_get_over_a_fault(point: Point, tmp_path: Path) -> None:
    if point not in _called():
        return
    fault = Fault(before={2}, behind={9})
    run_with(point, fault, tmp_path)
    if 0 < fault.num_calls < 9:
        run_with(point, Fault(before={1}), tmp_path)


def run_with(point: Point, fault: Fault, directory: Path) -> None:
    llm = _open()
    with pytest.MonkeyPatch.context() as patch, nothing_left(llm):
        point.patch(patch, fault)
        User(llm, fault, directory / "session").run()
    assert_pages_are_counted(llm.engine.pages)
    assert_everything_can_be_had(llm.engine.pages)
