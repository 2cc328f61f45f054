"""Ctrl-C while a step runs."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from hybridrt import RequestOutput, SamplingParams
from hybridrt.engine.interrupts import Interrupts
from tests.engine.small import small_llm

PROMPT = [5, 9, 2, 7]
ONE, SIX = (SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 6))


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Python's own handler, and again whichever was there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_it_waits_for_the_end_of_the_step_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = small_llm()
    (expected,) = llm.generate([PROMPT], SIX)
    run, ended = llm.engine._runner.run, list[bool]()

    def interrupted(*args: object) -> object:
        signal.raise_signal(signal.SIGINT)
        results = run(*args)
        ended.append(True)
        return results

    request = llm.add_request(PROMPT, SIX)
    monkeypatch.setattr(llm.engine._runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.step()
    assert ended == [True] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    outputs: list[RequestOutput] = []
    while llm.has_unfinished:
        outputs += llm.step()
    assert {output.request_id for output in outputs} == {request}
    assert outputs[-1].outputs[0].token_ids == expected.outputs[0].token_ids
    assert outputs[-1].metrics.num_preemptions == 0


def test_what_finished_in_that_step_is_returned_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = small_llm()
    run = llm.engine._runner.run

    def interrupted(*args: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return run(*args)

    llm.add_request(PROMPT, ONE)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(llm.engine._runner, "run", interrupted)
        llm.step()
    (output,) = llm.step()
    assert output.finished and len(output.outputs[0].token_ids) == 1 and not llm.has_unfinished


def test_generate_stops_at_the_end_of_the_step_and_gives_the_handler_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = small_llm()
    run, ended = llm.engine._runner.run, list[bool]()

    def interrupted(*args: object) -> object:
        if len(ended) == 2:
            signal.raise_signal(signal.SIGINT)
        results = run(*args)
        ended.append(True)
        return results

    monkeypatch.setattr(llm.engine._runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([PROMPT], SIX)
    assert len(ended) == 3 and not llm.has_unfinished
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_between_steps_it_waits_for_nothing() -> None:
    interrupts, passed = Interrupts(), list[int]()
    with pytest.raises(KeyboardInterrupt), interrupts.handled():
        with interrupts.held():
            passed.append(1)
        signal.raise_signal(signal.SIGINT)
        passed.append(2)
    assert passed == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_pressed_again_it_does_not_wait() -> None:
    passed: list[int] = []
    with pytest.raises(KeyboardInterrupt), Interrupts().held():
        signal.raise_signal(signal.SIGINT)
        passed.append(1)
        signal.raise_signal(signal.SIGINT)
        passed.append(2)
    assert passed == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_goes_with_an_error_of_the_step() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, Interrupts().held():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("of the step")
    assert isinstance(caught.value.__context__, ValueError)


def test_a_handler_that_was_there_gets_it_at_the_end() -> None:
    got: list[int] = []

    def own(number: int, frame: FrameType | None) -> None:
        got.append(number)

    signal.signal(signal.SIGINT, own)
    with Interrupts().held():
        signal.raise_signal(signal.SIGINT)
        assert not got
    assert got == [signal.SIGINT] and signal.getsignal(signal.SIGINT) is own


def test_one_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts().held():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_step_in_another_thread_changes_no_handler() -> None:
    seen: list[object] = []

    def run() -> None:
        with Interrupts().held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
