"""An exception anywhere in a step: nothing wrong is left behind, and all come right after it."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import hybridrt.engine.runner
from hybridrt import LLM
from hybridrt.request import RequestOutput
from tests.harness.engines import open_llm
from tests.reuse.cache_checks import (
    assert_everything_can_be_had,
    assert_pages_are_counted,
    assert_pins_are_right,
    assert_structures_are_bounded,
    assert_tree_is_sound,
)
from tests.reuse.trees import DRAWN, GREEDY, LONGEST, NUM_NEW, assert_same, expected

NAME = "hybrid_stack-every-kind-of-cache"


class Unplugged(Exception):  # noqa: N818 (it is no error of the code)
    """What no code expects."""


class Fault:
    """Raises at the `at`-th call of a function, before or behind it."""

    def __init__(self, call: Callable[..., Any], at: int, *, behind: bool) -> None:
        self.call, self.at, self.behind, self.num_calls = call, at, behind, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        fails = self.num_calls == self.at
        if fails and not self.behind:
            raise Unplugged
        result = self.call(*args, **kwargs)
        if fails:
            raise Unplugged
        return result


def places(llm: LLM) -> dict[str, Any]:
    """Where the methods are that a step goes through."""
    engine, pages = llm.engine, llm.engine.pages
    assert pages.prefix is not None and pages._reuse is not None
    return {
        "model": engine.model,
        "runner": engine._runner,
        "sampling": hybridrt.engine.runner,
        "builder": engine._runner.batches,
        "scheduler": engine._scheduler,
        "pages": pages,
        "reuse": pages._reuse,
        "prefix": pages.prefix,
        "pool": engine.pool,
        "allocator": engine.pool.allocator,
    }


POINTS = [
    "model.forward",
    "model.logits",
    "runner.run",
    "sampling.sample",
    "sampling.token_logprobs",
    "builder.build",
    "scheduler.schedule",
    "scheduler.commit",
    "pages.match",
    "pages.can_admit",
    "pages.admit",
    "pages.can_extend",
    "pages.extend",
    "pages.reserve_export",
    "pages.exports",
    "pages.initial_states",
    "pages.commit",
    "reuse.retain",
    "reuse.begin",
    "reuse.take_partial",
    "reuse.reserve",
    "reuse.publish",
    "reuse.leave_behind",
    "prefix.match",
    "prefix.begin",
    "prefix.make_room",
    "prefix.advance",
    "prefix.add_checkpoint",
    "prefix.unpin",
    "prefix.left_behind",
    "pool.copy",
    "pool.allocate",
    "allocator.allocate",
    "allocator.shortage",
    "pages.finish",
    "pages.free",
    "reuse.donate",
    "reuse.end",
    "prefix.end",
    "prefix.supersede",
    "pool.release",
    "pool.drop",
    "allocator.retain",
    "allocator.release",
    "allocator.keep",
    "allocator.drop",
]


def prompts() -> list[list[int]]:
    draw = Random(11)
    base = [draw.randrange(100) for _ in range(60)]
    lengths = [(40, 0), (40, 0), (33, 5), (21, 30), (60, 3), (33, 9)]
    return [[*base[:n], *(draw.randrange(100) for _ in range(more))] for n, more in lengths]


def open_tight() -> LLM:
    """With room for one of the longest: pages are dropped, and requests preempted."""
    options = {"page_size": 4, "max_num_batched_tokens": 24, "max_num_seqs": 3}
    longest = {"max_model_len": LONGEST + NUM_NEW}
    ample = open_llm(NAME, **options, **longest).plan
    slabs = ample.slabs_for(LONGEST + NUM_NEW)
    return open_llm(NAME, cache_memory=slabs * ample.slab_bytes, **options, **longest)


def run_through(llm: LLM) -> tuple[dict[str, RequestOutput], int]:
    """All prompts twice, stepping on after every exception. What came, and how many there were."""
    finished: dict[str, RequestOutput] = {}
    num_faults = 0
    for turn in range(2):
        for index, prompt in enumerate(prompts()):
            params = DRAWN if index == 4 else GREEDY
            llm.add_request(prompt, params, f"{turn}-{index}")
        for _ in range(400):
            if not llm.has_unfinished:
                break
            try:
                finished |= {out.request_id: out for out in llm.step() if out.finished}
            except Unplugged:
                num_faults += 1
                assert_is_sound(llm)
        assert not llm.has_unfinished
    return finished, num_faults


def assert_is_sound(llm: LLM) -> None:
    pages = llm.engine.pages
    assert_tree_is_sound(pages)
    assert_pins_are_right(pages)
    assert_structures_are_bounded(pages)


def check(llm: LLM, finished: dict[str, RequestOutput]) -> None:
    assert len(llm.engine.pages) == 0
    assert_is_sound(llm)
    assert len(finished) == 2 * len(prompts())
    for name, output in finished.items():
        index = int(name.partition("-")[2])
        cold = expected(NAME, prompts()[index], DRAWN if index == 4 else GREEDY)
        assert_same(output, cold)
        logprobs = output.outputs[0].logprobs
        assert logprobs is not None and len(logprobs) == NUM_NEW
    assert_pages_are_counted(llm.engine.pages)
    assert_everything_can_be_had(llm.engine.pages)


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("point", POINTS)
def test_a_step_that_fails(point: str, behind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    where, _, method = point.partition(".")
    num_faults = 0
    for at in (1, 6):
        with monkeypatch.context() as patch:
            llm = open_tight()
            place = places(llm)[where]
            fault = Fault(getattr(place, method), at, behind=behind)
            patch.setattr(place, method, fault)
            finished, raised = run_through(llm)
        check(llm, finished)
        assert raised == (fault.num_calls >= at)
        num_faults += raised
    assert num_faults >= 1, "never called"
