"""A request gives what it gives alone: whatever is beside it, however its cache is cut.

Hypothesis draws the sizes of pages, blocks, steps and pool, the layout, when
requests come in, and which others are aborted when.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hybridrt import LLM
from tests.harness.engines import (
    all_at_once,
    assert_all_same,
    assert_same,
    free_slabs,
    jobs,
    leave_room_for,
    open_llm,
    run,
)
from tests.harness.properties import PAGES, bounded
from tests.harness.rows import CACHE_ROWS, FIRST_ROWS, OF_EACH_CACHE, ROWS


@dataclass(frozen=True)
class Setting:
    """Options of the engine; the rest of the pool is taken by another when `spare` is given."""

    options: Mapping[str, Any]
    spare: int | None


@dataclass(frozen=True)
class Traffic:
    """At which step each job comes; and others, as (job it copies, comes, is aborted)."""

    arrivals: tuple[int, ...]
    aborted: tuple[tuple[int, int, int], ...]


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    """What cuts least comes first, as hypothesis tries that for every row."""
    page_size = draw(st.sampled_from([64, 16, 4, 1]))
    blocks = [size for size in (1, 2, 4, 8, 16, 64) if page_size % size == 0]
    options = {
        "page_size": page_size,
        "kernel_block_size": draw(st.sampled_from([None, *blocks])),
        "kv_layout": draw(st.sampled_from(["HND", "NHD"])),
        "cache_policy": draw(st.sampled_from(["paged", "paged", "contiguous"])),
        "max_num_batched_tokens": draw(st.sampled_from([100, 64, 31, 16, 8, 3, 1])),
        "max_num_seqs": draw(st.integers(1, 8)),
        "attention_backend": draw(st.sampled_from(["reference", "numba"])),
        "state_backend": draw(st.sampled_from(["reference", "numba"])),
    }
    return Setting(options, draw(st.sampled_from([None, 0, 1, 3])))


@st.composite
def traffic(draw: st.DrawFn) -> Traffic:
    step = st.integers(0, 12)
    victim = st.tuples(st.integers(0, 4), step, st.integers(0, 9))
    victims = [(job, at, at + later) for job, at, later in draw(st.lists(victim, max_size=3))]
    return Traffic(tuple(draw(st.lists(step, min_size=5, max_size=5))), tuple(victims))


def open_setting(name: str, setting: Setting) -> LLM:
    """The engine in that setting."""
    llm = open_llm(name, **setting.options)
    if setting.spare is not None:
        alone = llm.plan.slabs_for(llm.max_model_len)
        leave_room_for(llm, min(alone + setting.spare, llm.plan.num_slabs))
    return llm


BEGIN_TOGETHER = Setting({"page_size": 4, "max_num_batched_tokens": 7}, 1), Traffic((0,) * 5, ())


@pytest.mark.parametrize("name", CACHE_ROWS)
@bounded(3)
@example(*BEGIN_TOGETHER)
@given(setting=settings(), traffic=traffic())
def test_alone_is_batched_is_chunked_is_beside_aborted_ones(
    name: str, setting: Setting, traffic: Traffic
) -> None:
    assert_the_same_as_alone(name, setting, traffic)


@pytest.mark.parametrize("name", [name for name in ROWS if name not in CACHE_ROWS])
@bounded(2)
@example(*BEGIN_TOGETHER)
@given(setting=settings(), traffic=traffic())
def test_other_models_of_the_same_caches(name: str, setting: Setting, traffic: Traffic) -> None:
    assert_the_same_as_alone(name, setting, traffic)


def assert_the_same_as_alone(name: str, setting: Setting, traffic: Traffic) -> None:
    llm = open_setting(name, setting)
    room = free_slabs(llm)
    kept = list(jobs(name).items())
    requests = {
        request_id: (at, job) for at, (request_id, job) in zip(traffic.arrivals, kept, strict=True)
    }
    aborts: dict[str, int] = {}
    for i, (copied, comes, leaves) in enumerate(traffic.aborted):
        requests[f"aborted-{i}"] = (comes, kept[copied][1])
        aborts[f"aborted-{i}"] = leaves
    assert_all_same(run(llm, requests, aborts), name)
    assert free_slabs(llm) == room


@pytest.mark.parametrize(("page_size", "block", "layout"), PAGES)
@pytest.mark.parametrize("name", OF_EACH_CACHE)
def test_every_page_size(name: str, page_size: int, block: int, layout: str) -> None:
    options = {"page_size": page_size, "kernel_block_size": block, "kv_layout": layout}
    llm = open_llm(name, **options, max_num_batched_tokens=13)
    assert_all_same(run(llm, all_at_once(name)), name)


@pytest.mark.parametrize("name", CACHE_ROWS)
def test_preempted_and_resumed(name: str) -> None:
    """In pools hardly larger than the longest sequence, growing ones push others out.

    A model that caches states only never has to: a sequence of it doesn't grow.
    """
    preemptions = 0
    for spare in range(4):
        llm = open_setting(name, Setting({"page_size": 1, "max_num_batched_tokens": 24}, spare))
        outputs = run(llm, all_at_once(name))
        assert_all_same(outputs, name)
        preemptions += sum(output.metrics.num_preemptions for output in outputs.values())
    plan = open_llm(name).plan
    kinds = {group.kind for group in plan.groups}
    if "window" not in kinds:  # those may make do with smaller chunks
        assert ("full" in kinds) == (preemptions > 0)


@pytest.mark.parametrize("name", ROWS)
def test_started_over_after_failed_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that fail behind the model have changed every state that they ran over."""
    llm = open_llm(name, page_size=4, max_num_batched_tokens=24)
    calls, logits = 0, llm.engine.model.logits

    def sometimes_failing(hidden: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 7 == 5:
            raise OSError("the plug was pulled")
        return logits(hidden)

    monkeypatch.setattr(llm.engine.model, "logits", sometimes_failing)
    monkeypatch.setattr(llm, "step", _retrying(llm))
    outputs = run(llm, all_at_once(name))
    assert_all_same(outputs, name)
    assert all(output.metrics.num_preemptions > 0 for output in outputs.values())


def _retrying(llm: LLM) -> Any:
    step = llm.step

    def retry() -> Any:
        try:
            return step()
        except OSError:
            return []

    return retry


@pytest.mark.parametrize("name", FIRST_ROWS)
def test_one_request_in_every_place_of_a_full_batch(name: str) -> None:
    """Copies of one request don't see each other either."""
    llm = open_llm(name, page_size=4, max_num_batched_tokens=64)
    job = jobs(name)["job-17"]
    outputs = run(llm, {f"copy-{i}": (i % 3, job) for i in range(9)})
    assert len(outputs) == 9
    for output in outputs.values():
        assert_same(output, job)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ROWS)
def test_on_a_gpu(name: str) -> None:
    """Batched, chunked and preempted, in both layouts."""
    for spare, layout in ((0, "HND"), (3, "NHD")):
        options = {"page_size": 4, "kv_layout": layout, "max_num_batched_tokens": 13}
        llm = open_setting(name, Setting({**options, "device": "cuda"}, spare))
        assert_all_same(run(llm, all_at_once(name, "cuda")), name, "cuda")
