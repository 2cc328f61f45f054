"""Padded decode steps on fixed tensors give what a batch of the rows alone gives."""

import inspect
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hybridrt import LLM, SamplingParams
from hybridrt.batch import ForwardBatch
from hybridrt.cache.plan import GroupPlan
from hybridrt.cache.spec import Window
from hybridrt.engine.batch_builder import BatchBuilder
from hybridrt.engine.engine import Engine
from hybridrt.engine.runner import Results, RowResult
from hybridrt.engine.scheduler import Row, Scheduler
from hybridrt.engine.static_decode import (
    StaticBatches,
    StaticDecode,
    batch_sizes,
    decode_step,
    table_width,
)
from hybridrt.request import RequestOutput
from tests.harness.engines import (
    LARGEST_ERROR,
    all_at_once,
    assert_all_same,
    assert_same,
    free_slabs,
    jobs,
    leave_room_for,
    open_llm,
    run,
)
from tests.harness.properties import bounded
from tests.harness.rows import CACHE_ROWS
from tests.models.test_invariances import Setting, Traffic, open_setting, settings, traffic

MOST = 13  # rows: behind 8, so that the largest size is none of the usual ones
ALL_KINDS = "hybrid_stack-every-kind-of-cache"


@dataclass(frozen=True)
class Seen:
    """Of a padded batch: rows in all, and those that are padding."""

    rows: int
    padding: int


def pad(llm: LLM) -> list[Seen]:
    """Lets an engine pad its decodes. Returns where what it runs will be noted."""
    engine, seen = llm.engine, list[Seen]()
    step = decode_step(engine.model)

    def noted(batch: ForwardBatch) -> Tensor:
        seen.append(Seen(batch.num_rows, int((batch.context_lens == 0).sum())))
        return step(batch)

    batches = StaticBatches(
        engine.plan.groups,
        batch_sizes(MOST),
        engine.max_model_len,
        torch.device("cpu"),
        switches_rope=engine.model.rope_switch_length is not None,
    )
    engine._runner.static_decode = StaticDecode(batches, noted)
    return seen


@pytest.mark.parametrize("name", CACHE_ROWS)
def test_every_stack_gives_what_it_gives_without_padding(name: str) -> None:
    """In a pool so small that some are preempted, full of poison where nobody's pages are."""
    llm = open_llm(name, page_size=4)
    leave_room_for(llm, min(llm.plan.slabs_for(llm.max_model_len) + 3, llm.plan.num_slabs))
    seen = pad(llm)
    assert_all_same(run(llm, all_at_once(name)), name)
    assert seen


@bounded(25)
@given(setting=settings(), traffic=traffic())
def test_a_stack_of_all_kinds_does_so_in_any_setting(setting: Setting, traffic: Traffic) -> None:
    llm = open_setting(ALL_KINDS, setting)
    room, seen = free_slabs(llm), pad(llm)
    arrivals = zip(traffic.arrivals, jobs(ALL_KINDS).items(), strict=True)
    requests = {request_id: (at, job) for at, (request_id, job) in arrivals}
    assert_all_same(run(llm, requests), ALL_KINDS)
    assert free_slabs(llm) == room
    assert seen


@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize("name", [ALL_KINDS, "llama-longrope-long", "hybrid_stack-sliding-windows"])
def test_a_batch_may_be_prepared_while_the_last_step_runs(name: str, pads: bool) -> None:
    """As on a GPU: sequences go on, end, come in, are aborted and preempted all the same."""
    for page_size in (1, 16):
        llm = open_llm(name, page_size=page_size)
        leave_room_for(llm, min(llm.plan.slabs_for(llm.max_model_len) + 3, llm.plan.num_slabs))
        llm.engine._runner.prepares_ahead = True
        if pads:
            pad(llm)
        requests = {job: (2 * i, of) for i, (job, of) in enumerate(jobs(name).items())}
        requests["aborted"] = (1, jobs(name)["job-17"])
        outputs = run(llm, requests, {"aborted": 5})
        assert_all_same(outputs, name)


@pytest.mark.parametrize("name", [ALL_KINDS, "llama-longrope-long", "hybrid_stack-sliding-windows"])
def test_a_step_may_be_launched_before_the_last_ones_outputs_are_made(name: str) -> None:
    """As on a GPU, in steps in a row: sequences end, come in, are aborted and preempted."""
    for page_size in (1, 16):
        llm = open_llm(name, page_size=page_size)
        leave_room_for(llm, min(llm.plan.slabs_for(llm.max_model_len) + 3, llm.plan.num_slabs))
        room, begun, launched = free_slabs(llm), begins(llm), launches_ahead(llm)
        requests = {job: (2 * i, of) for i, (job, of) in enumerate(jobs(name).items())}
        requests["aborted"] = (1, jobs(name)["job-17"])
        with llm.engine.in_a_row():
            outputs = run(llm, requests, {"aborted": 5})
        assert_all_same(outputs, name)
        assert free_slabs(llm) == room
        assert launched.count(True) > 5
        # If rotary tables are switched, or every token has a page of its own, nothing is certain.
        assert bool(begun) == (page_size == 16 and "longrope" not in name)


@pytest.mark.parametrize(
    "params", [{"ignore_eos": True}, {"min_tokens": 20}, {"stop_token_ids": [9]}]
)
def test_a_step_whose_rows_go_on_whatever_they_draw_begins_before_they_have(
    monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]
) -> None:
    prompts = [[1] * 3, [2] * 5, [3] * 9]
    alone, llm = (open_llm(ALL_KINDS, page_size=16) for _ in range(2))
    begun = begins(llm)
    launches_ahead(llm)
    build = BatchBuilder._build

    def on_a_device(self: BatchBuilder, rows: list[Row]) -> ForwardBatch:
        batch = build(self, rows)
        self._input_ids = None  # as where the host can't write the tokens of a batch
        return batch

    monkeypatch.setattr(BatchBuilder, "_build", on_a_device)
    sampling = SamplingParams(max_tokens=24, temperature=0, **params)
    outputs = llm.generate(prompts, sampling)
    monkeypatch.undo()
    for prompt, output in zip(prompts, outputs, strict=True):
        (expected,) = alone.generate([prompt], sampling)
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids
        assert output.outputs[0].finish_reason == expected.outputs[0].finish_reason
    assert {is_early for is_early, _ in begun[:3]} == {"stop_token_ids" not in params}


def test_between_steps_that_are_not_in_a_row_none_is_at_work() -> None:
    llm = open_llm(ALL_KINDS, page_size=16)
    launched = launches_ahead(llm)
    job = jobs(ALL_KINDS)["job-17"]
    name = llm.add_request(list(job.prompt), job.params)
    llm.generate([[1] * 3], SamplingParams(max_tokens=4, ignore_eos=True))
    assert True in launched and llm.engine._launched is None
    copy = llm.engine.export_request(name)
    (sequence,) = copy.sequences
    assert len(sequence.token_ids) - len(job.prompt) == 5  # that of the last step in a row is in it
    del launched[:]
    while llm.has_unfinished:
        (output,) = llm.step()
    assert_same(output, job)
    assert True not in launched


def launches_ahead(llm: LLM) -> list[bool]:
    """Lets an engine launch ahead. Returns where it is noted whether a step was."""
    runner, launched = llm.engine._runner, list[bool]()
    pad(llm)
    runner.prepares_ahead = runner.launches_ahead = True
    launch = runner.launch

    def noted(rows: list[Row]) -> Results[list[RowResult]]:
        caller = inspect.currentframe()
        assert caller is not None and caller.f_back is not None
        launched.append(caller.f_back.f_code.co_name == "_launch_ahead")
        return launch(rows)

    runner.launch = noted
    return launched


def begins(llm: LLM) -> list[tuple[bool, ForwardBatch]]:
    """Notes the steps that begin before the last one is committed. All of them are launched.

    And whether it was before its tokens were known.
    """
    runner, begun = llm.engine._runner, list[tuple[bool, ForwardBatch]]()
    begin, launch = runner.begin_next, runner.launch

    def noted(tokens: list[int] | None) -> bool:
        has_begun = begin(tokens)
        assert has_begun == (runner._begun is not None)
        if runner._begun is not None:
            begun.append((tokens is None, runner._begun[0]))
        return has_begun

    def launched(rows: list[Row]) -> Results[list[RowResult]]:
        before = runner._begun
        results = launch(rows)
        assert before is None or before[0] is runner.batches._last
        assert runner._begun is None
        return results

    runner.begin_next, runner.launch = noted, launched
    return begun


@pytest.mark.parametrize(
    ("where", "name"), [(Scheduler, "commit"), (Engine, "_wait_and_begin"), (Scheduler, "schedule")]
)
def test_what_breaks_off_while_the_next_step_has_begun_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, where: type, name: str
) -> None:
    llm = open_llm(ALL_KINDS, page_size=16)
    begun, whole = begins(llm), getattr(where, name)
    launches_ahead(llm)

    def failing(*args: Any) -> Any:
        result = whole(*args)
        if len(begun) in (2, 3) and llm.engine._runner._begun is not None:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(where, name, failing)
    job = jobs(ALL_KINDS)["job-17"]
    llm.add_request(list(job.prompt), job.params, "one")
    outputs: list[RequestOutput] = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), llm.engine.in_a_row():
            while True:
                outputs = llm.step()
        assert llm.engine._runner._begun is None
    with llm.engine.in_a_row():
        while llm.has_unfinished:
            outputs = llm.step()
    assert_same(outputs[-1], job)
    assert len(begun) > 3


def test_what_breaks_off_a_step_that_was_launched_loses_nothing() -> None:
    llm = open_llm(ALL_KINDS, page_size=16)
    launches_ahead(llm)
    runner, count = llm.engine._runner, [0]
    launch = runner.launch

    def failing(rows: list[Row]) -> Any:
        results = launch(rows)
        count[0] += 1
        if count[0] == 5:
            raise RuntimeError("of the device")
        if count[0] == 8:
            return lambda: 1 / 0
        return results

    runner.launch = failing
    job = jobs(ALL_KINDS)["job-17"]
    llm.add_request(list(job.prompt), job.params, "one")
    outputs: list[RequestOutput] = []
    with pytest.raises(RuntimeError, match="of the device"), llm.engine.in_a_row():
        while True:
            outputs = llm.step()
    with pytest.raises(ZeroDivisionError), llm.engine.in_a_row():
        while True:
            outputs = llm.step()
    while llm.has_unfinished:
        outputs = llm.step()
    assert_same(outputs[-1], job)


def test_of_a_prepared_batch_only_tokens_are_filled_in_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = open_llm(ALL_KINDS, page_size=16)
    pad(llm)
    llm.engine._runner.prepares_ahead = True
    fill, filled = StaticBatches.fill_rest, list[bool]()
    monkeypatch.setattr(
        StaticBatches, "fill_rest", lambda *args: (filled.append(during_run[0]), fill(*args))
    )
    during_run, decode = [False], llm.engine._runner.static_decode
    assert decode is not None
    whole = decode.run

    def noted(batch: ForwardBatch) -> Tensor:
        during_run[0] = True
        try:
            return whole(batch)
        finally:
            during_run[0] = False

    monkeypatch.setattr(decode, "run", noted)
    llm.generate([[1] * 3, [2] * 5], SamplingParams(max_tokens=10, ignore_eos=True))
    assert filled.count(True) == 1  # the first
    assert filled.count(False) >= 8


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("name", [ALL_KINDS, "llama-longrope-long", "hybrid_stack-sliding-windows"])
def test_a_batch_that_moved_on_is_filled_in_as_if_anew(
    name: str, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While sequences go on, end and come in, of more and fewer than a size has rows."""
    requests = {job: (4 * i, of) for i, (job, of) in enumerate(jobs(name).items())}
    llm = open_llm(name, page_size=page_size, max_num_seqs=MOST)
    pad(llm)
    decode, fill, moved = llm.engine._runner.static_decode, StaticBatches.fill_rest, list[bool]()
    assert decode is not None

    def compared(batches: StaticBatches, batch: ForwardBatch) -> None:
        moved.append(batch is batches._filled)
        fill(batches, batch)
        new = StaticBatches(
            llm.plan.groups,
            batches.sizes,
            llm.max_model_len,
            torch.device("cpu"),
            switches_rope=llm.engine.model.rope_switch_length is not None,
        )
        fill(new, batch)
        for each in (batches, new):
            each.fill_tokens()
        for padded, expected in zip(
            numbers_of(batches.smallest(batch)), numbers_of(new.smallest(batch)), strict=True
        ):
            assert torch.equal(padded, expected)

    monkeypatch.setattr(StaticBatches, "fill_rest", compared)
    assert_all_same(run(llm, requests), name)
    assert moved.count(True) > 3 and moved.count(False) > 1


def numbers_of(batch: ForwardBatch) -> list[Tensor]:
    """All that layers read of a padded batch."""
    parts = [
        getattr(owner, field.name)
        for owner in (batch, *batch.groups.values())
        for field in fields(owner)
    ]
    return [part for part in parts if isinstance(part, Tensor)]


@pytest.mark.parametrize("backend", ["reference", "numba"])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 13])
def test_the_whole_pool_is_the_same(rows: int, backend: str) -> None:
    """What nobody holds is poison: padding has written nowhere."""
    pools: list[Tensor] = []
    for padded in (False, True):
        options = {"attention_backend": backend, "state_backend": backend, "cache_memory": "8MiB"}
        llm = open_llm(ALL_KINDS, page_size=4, max_num_seqs=MOST, **options)
        llm.engine.pool.bytes.fill_(0xFF)
        seen = pad(llm) if padded else []
        params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
        for i in range(rows):
            llm.add_request([i + 3] * (i % 4 + 2), params)
        for _ in range(6):
            llm.step()
        pools.append(llm.engine.pool.bytes.view(torch.float32))
    assert seen and all(one.rows - one.padding == rows for one in seen)
    assert_close(*pools, rtol=LARGEST_ERROR, atol=LARGEST_ERROR, equal_nan=True)


def test_sizes_are_few_and_end_with_the_most_rows() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(3) == [1, 2, 3]
    assert batch_sizes(8) == [1, 2, 4, 8]
    assert batch_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert batch_sizes(100)[-4:] == [64, 80, 96, 100]


@given(
    size=st.integers(1, 40),
    block=st.integers(1, 20),
    chunked=st.booleans(),
    position=st.integers(0, 400),
)
def test_a_table_has_room_for_all_blocks_that_a_token_sees(
    size: int, block: int, chunked: bool, position: int
) -> None:
    window = Window(size, chunked)
    group = GroupPlan("window", "window", (), block, block, 1, 1, 1, window)
    blocks = position // block - window.first_visible(position) // block + 1
    assert blocks <= table_width(group, max_model_len=401)
