"""An exception anywhere in a step: nothing wrong is left behind, and all come right after it.

Anywhere is the beginning and the end of every function, method and property of the modules of
`fault_points`, the private ones too, so that new ones are tried by themselves. What this
traffic doesn't come to in a step is listed, and must be.
"""

import functools
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from hybridrt import LLM, SamplingParams
from hybridrt.engine.entry import Entry
from hybridrt.request import RequestOutput
from tests.harness.engines import open_llm
from tests.reuse.cache_checks import (
    assert_everything_can_be_had,
    assert_pages_are_counted,
    assert_pins_are_right,
    assert_structures_are_bounded,
    assert_tree_is_sound,
)
from tests.reuse.fault_points import (
    CACHE,
    ENGINE,
    Fault,
    Point,
    Unplugged,
    arm,
    called,
    forwards,
    points,
)
from tests.reuse.trees import DRAWN, GREEDY, NUM_NEW, SCORED, assert_same, expected

NAME = "hybrid_stack-every-kind-of-cache"
WITHOUT_STATES = "hybrid_stack-sliding-windows"
WITHOUT_WINDOWS = "jamba-odd-sizes"

ELSEWHERE: dict[str, str] = {
    "whoever calls the engine": """
        Engine.step Engine.add_request Engine.run_held Engine.stats Engine.abort
        Engine.export_request Engine.import_request Engine.max_model_len Engine.has_unfinished
        Engine.repairing Engine.in_a_row Engine.num_running Engine.num_waiting Engine.has_request
        Engine._begin_with_token
        Engine._seed Engine._sequence Engine._check Runner.sample_from sampler.derive_seed
        sampler._mix_one
        Counts.data Counts.since ReuseStats.take stats.pool_data PrefixCache.data Scheduler.add
        HoldingScheduler.adopt Scheduler.adopt
    """,
    "when the engine is made": """
        Pool.blocks Pool.layer_pages pool._allocator pool._zeros prefix.make_prefix_cache
        engine._eos_token_ids
    """,
    "to recover from a fault": """
        Engine._start_over Scheduler.preempt_all HoldingScheduler.start_over Scheduler.start_over
        Runner.forget_begun
        Sequence.forget_lost_tokens HeldSequences.lose_pages Pool.reset SequencePages.reset
        PrefixCache.emptied
    """,
    "sessions; see tests/session/test_faults.py": """
        HeldRun.know HeldRun.append Held.complete HeldSequences.open HeldSequences.close
        HeldSequences.append HeldSequences.begin HeldSequences.settle HeldSequences.fork
        HeldSequences.nearest_exact HeldSequences.truncate HeldSequences._shortest_exact
        HeldSequences._tree PrefixCache.positions Finder.positions Reuse.begin_apart
        Reuse.keep_states SequencePages.keep_states HeldSequences.table
        HeldSequences.snapshot HeldSequences.restore HeldSequences._passes_switch
        HeldSequences._drop HeldSequences._go_back HeldSequences._forget_last
        held._shortest_seeing HeldSequences.explain_no_room SequencePages.num_committed
        SequencePages.reserve_exports SequencePages.resume SequencePages.fork
        SequencePages.rest Entry.pages_to_fork sequence_entry._committed_pages
        SequencePages.set_aside SequencePages.put_back SequencePages.own SlabAllocator.is_kept
        HeldSequences.is_lost HeldSequences.set_aside HeldSequences.put_back HeldSequences.let_go
        HeldSequences._forget_abandoned Finder.checkpoints PrefixCache.checkpoints
        SequencePages.tap Engine.recording HoldingScheduler._tap Runner.run_eagerly
        Reuse.fork PrefixCache.join PageTable.kernel_ids
    """,
    "a hit that leaves no room for the rest, which takes the whole pool": "Match.unused",
    "one that gave way to itself": "SequencePages.forget_cached PrefixCache.forget_all",
    "on a GPU; see tests/engine/test_static_decode.py": """
        BatchBuilder.move_ahead Engine._catch_up Engine._finish_launched
        Engine._wait_and_begin Scheduler.all_go_on Sequence.surely_goes_on
        HeldRun.surely_goes_on SequencePages.stays_put BatchBuilder.take_ahead Runner.begin_next
    """,
    "where other rotary frequencies hold for long sequences": """
        Engine._switch_rope Engine._passes_switch
    """,
    "more dropped pages than are remembered": "PrefixCache._forget_ghost",
    "a prompt again whose pages were dropped": "PrefixCache.remember",
    "long prompts, and sessions at rest": "SlabAllocator.are_free",
    "once in half a second": """
        StatsRecorder.rows StatsRecorder.add_row StatsRecorder.details StatsRecorder._row
        StatsRecorder._bytes
    """,
    "reports, tests, and handing pages on": """
        _Group.slabs SlabAllocator.num_free_slabs SlabAllocator.num_unused_slabs
        SlabAllocator.slabs_of SlabAllocator.num_free_pages SlabAllocator.num_live_pages
        SlabAllocator.num_cached_pages SlabAllocator.most_live_pages SlabAllocator.forget_most
        SlabAllocator.references HoldingScheduler.num_waiting HoldingScheduler.has_unfinished
        Scheduler.num_waiting Scheduler.has_unfinished SequencePages.can_admit
        SequencePages.can_extend Reuse.release PageTable.pop PageTable.swap
        SlabAllocator.claims SequencePages.held_apart Reuse.held_by
    """,
}
"""What isn't called in the steps below, by who calls it."""


def prompts() -> list[list[int]]:
    draw = Random(11)
    base = [draw.randrange(100) for _ in range(30)]
    lengths = [(13, 0), (13, 0), (9, 2), (5, 9), (30, 3), (9, 3)]
    return [[*base[:n], *(draw.randrange(100) for _ in range(more))] for n, more in lengths]


def _params(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=2, **options)


PENALISED = _params(10, temperature=0.0, frequency_penalty=0.1)
TOP = _params(11, seed=5, temperature=0.9, top_k=20, top_p=0.9)
TWO = _params(6, seed=6, temperature=0.9, n=2)
PARAMS = [GREEDY, PENALISED, TWO, SCORED, DRAWN, TOP]


def open_tight(name: str = NAME, **options: Any) -> LLM:
    """With so little room that pages are dropped, and requests preempted."""
    choices = {"page_size": 4, "max_num_batched_tokens": 24, "max_num_seqs": 4, **options}
    return open_llm(name, cache_memory="37KiB", max_model_len=43, **choices)


def run_through(llm: LLM, *faults: Fault) -> tuple[dict[str, RequestOutput], int]:
    """All prompts, then some again, stepping on after every exception.

    What came, and how many exceptions there were.
    """
    finished: dict[str, RequestOutput] = {}
    num_faults = 0
    for turn, indices in enumerate([range(6), (0, 4)]):
        for index in indices:
            llm.add_request(prompts()[index], PARAMS[index], f"{turn}-{index}")
        for _ in range(400):
            if not llm.has_unfinished:
                break
            arm(faults, True)
            try:
                finished |= {out.request_id: out for out in llm.step() if out.finished}
            except Unplugged:
                num_faults += 1
                arm(faults, False)
                assert_is_sound(llm)
            finally:
                arm(faults, False)
        assert not llm.has_unfinished
    return finished, num_faults


def assert_is_sound(llm: LLM) -> None:
    pages = llm.engine.pages
    assert_tree_is_sound(pages)
    assert_pins_are_right(pages)
    assert_structures_are_bounded(pages)


def check(llm: LLM, finished: dict[str, RequestOutput], name: str = NAME) -> None:
    assert len(llm.engine.pages) == 0
    assert_is_sound(llm)
    assert len(finished) == 8, "an output was lost"
    for request_id, output in finished.items():
        index = int(request_id.partition("-")[2])
        cold = expected(name, prompts()[index], PARAMS[index])
        for ours, theirs in zip(output.outputs, cold.outputs, strict=True):
            assert ours.logprobs is not None
            assert len(ours.logprobs) == len(ours.token_ids) == PARAMS[index].max_tokens
            assert_same(replace(output, outputs=[ours]), replace(cold, outputs=[theirs]))
    assert_pages_are_counted(llm.engine.pages)
    assert_everything_can_be_had(llm.engine.pages)


def run_with(point: Point, fault: Fault, name: str = NAME) -> None:
    # The cache does the same for steps that aren't recorded, and recording is a third of a run.
    options = {"record_decode": False} if point.module in CACHE else {}
    with pytest.MonkeyPatch.context() as patch:
        point.patch(patch, fault)
        llm = open_tight(name, **options)
        finished, raised = run_through(llm, fault)
    check(llm, finished, name)
    assert fault.num_raised >= raised


def _listed(names: dict[str, str]) -> dict[str, str]:
    return {name: why for why, of in names.items() for name in of.split()}


EVERYWHERE = {str(point): point for point in points([*CACHE, *ENGINE])}
IN_STEPS = [point for name, point in EVERYWHERE.items() if name not in _listed(ELSEWHERE)]


def test_what_is_listed_is_there() -> None:
    assert not _listed(ELSEWHERE).keys() - EVERYWHERE.keys()


@functools.cache
def _called(name: str) -> frozenset[Point]:
    return called(IN_STEPS, lambda faults: run_through(open_tight(name), *faults))


@pytest.mark.parametrize("point", IN_STEPS, ids=str)
def test_a_step_that_fails(point: Point) -> None:
    names = (NAME, WITHOUT_STATES, WITHOUT_WINDOWS)
    name = next((name for name in names if point in _called(name)), None)
    assert name, "it isn't called in a step: say in ELSEWHERE where it is"
    fault = Fault(before={1}, behind={17})
    run_with(point, fault, name)
    assert fault.num_raised
    if fault.num_calls < 17:
        run_with(point, Fault(behind={1}), name)


def test_no_output_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request's last output fails once, be it alone in its step or among others."""
    output, failed = Entry.output, set[str]()

    def failing(entry: Entry) -> RequestOutput:
        if entry.finished and entry.request.request_id not in failed:
            failed.add(entry.request.request_id)
            raise Unplugged
        return output(entry)

    monkeypatch.setattr(Entry, "output", failing)
    llm = open_tight()
    finished, raised = run_through(llm, Fault())
    monkeypatch.undo()
    check(llm, finished)
    assert raised == 8


def test_a_request_gets_over_any_number_of_failing_steps() -> None:
    llm = open_tight()
    (forward,) = (p for p in forwards(llm.engine.model) if "CausalLM" in str(p))
    with pytest.MonkeyPatch.context() as patch:
        fault = Fault(before=range(1, 10))
        forward.patch(patch, fault)
        llm.add_request(prompts()[0], GREEDY, "a")
        fault.is_armed = True
        for _ in range(9):
            with pytest.raises(Unplugged):
                llm.step()
        outputs = [output for _ in range(NUM_NEW) for output in llm.step()]
    assert_same(outputs[-1], expected(NAME, prompts()[0], GREEDY))


def test_a_forward_that_fails() -> None:
    """At each kind of layer, so that some have written and others haven't."""
    layers = [*forwards(open_tight().engine.model)]
    assert len(layers) > 5
    for layer in layers:
        run_with(layer, Fault(before={2}, behind={30}))
