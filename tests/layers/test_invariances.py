"""A layer gives a sequence what it gives it alone, whatever happens around it.

Hypothesis draws a schedule: how the tokens of some sequences fall into steps, which
sequences share a step, who is dropped and starts over, whose pages go to whom, and
how the pages are cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tests.harness.bench import Bench, Setting, alone, random_tokens
from tests.harness.layer_rows import BY_REASON, LAYERS, ONE_OF_EACH, LayerRow
from tests.harness.properties import PAGES, bounded
from tests.harness.tolerance import assert_close

LENGTHS = {"a": 41, "b": 17, "c": 66, "d": 1, "e": 9}
VICTIMS = {"x": 40, "y": 23}
"""Sequences that are never finished."""

Step = dict[str, int]
"""How many tokens each sequence gets in a step."""


@dataclass(frozen=True)
class Schedule:
    """Steps, and names that are dropped between them; then the rest in chunks of `rest`."""

    events: Sequence[Step | str]
    rest: int


@cache
def _tokens(name: str) -> Tensor:
    return random_tokens({**LENGTHS, **VICTIMS}[name], seed=ord(name))


@cache
def _expected(reason: str, name: str) -> Tensor:
    return alone(BY_REASON[reason], _tokens(name))


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    """What cuts least comes first, as hypothesis tries that for every layer."""
    page_size = draw(st.sampled_from([64, 16, 4, 1]))
    return Setting(
        page_size,
        draw(st.sampled_from([size for size in (1, 2, 4, 16, 64) if page_size % size == 0])),
        draw(st.sampled_from(["HND", "NHD"])),
        draw(st.sampled_from(["reference", "numba"])),
        draw(st.integers(0, 2**16)),
        attention_backend=draw(st.sampled_from(["reference", "numba"])),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    names = st.sampled_from([*LENGTHS, *VICTIMS])
    # Single tokens are as common as chunks, so that batches are mixed.
    count = st.one_of(st.just(1), st.integers(1, 5), st.integers(1, 70))
    steps = st.dictionaries(names, count, min_size=1)
    events = draw(st.lists(st.one_of(steps, steps, steps, names), max_size=12))
    return Schedule(events, draw(st.sampled_from([70, 16, 7, 3, 2, 1])))


def _run(bench: Bench, row: LayerRow, step: Step) -> None:
    """One step; every output is compared at once."""
    work: list[tuple[str, Tensor]] = []
    for name, count in step.items():
        start = bench.num_tokens(name)
        x = _tokens(name)[start : start + count]
        if len(x):
            work.append((name, x))
    if not work:
        return
    starts = {name: bench.num_tokens(name) for name, _ in work}
    for name, out in bench.step(work).items():
        whole = _expected(row.reason, name)
        assert_close(out, whole[starts[name] : starts[name] + len(out)], among=whole)


def _check(row: LayerRow, setting: Setting, schedule: Schedule) -> None:
    num_pages = sum(-(-n // setting.page_size) for n in (*LENGTHS.values(), *VICTIMS.values()))
    bench = Bench(row, setting, num_pages)
    for event in schedule.events:
        if isinstance(event, dict):
            _run(bench, row, event)
        elif bench.num_tokens(event):
            bench.drop(event)
    while any(bench.num_tokens(name) < length for name, length in LENGTHS.items()):
        _run(bench, row, dict.fromkeys(LENGTHS, schedule.rest))


_TOGETHER = Schedule([], 70)
_TOKEN_BY_TOKEN = Schedule([], 1)
_DROPPED = Schedule([{"a": 20, "x": 30, "b": 3}, "a", {"x": 1, "b": 1, "c": 9}, "x", "b"], 7)


@pytest.mark.parametrize("row", LAYERS, ids=lambda row: row.reason)
@bounded(5)
@example(Setting(), _TOGETHER)
@example(Setting(4, 4), _TOKEN_BY_TOKEN)
@example(Setting(4, 2, "NHD", "numba"), _DROPPED)
@given(setting=settings(), schedule=schedules())
def test_alone_is_batched_is_chunked_is_resumed(
    row: LayerRow, setting: Setting, schedule: Schedule
) -> None:
    _check(row, setting, schedule)


@pytest.mark.parametrize(("page_size", "block", "layout"), PAGES)
@pytest.mark.parametrize("row", LAYERS, ids=lambda row: row.reason)
def test_every_page_size(row: LayerRow, page_size: int, block: int, layout: str) -> None:
    _check(row, Setting(page_size, block, layout), _DROPPED)


ATTENTION = tuple(row for row in LAYERS if row.reason.startswith("attention"))


@pytest.mark.parametrize("row", ATTENTION, ids=lambda row: row.reason)
def test_pages_of_many_kernel_blocks(row: LayerRow) -> None:
    _check(row, Setting(66, 2, "NHD"), _DROPPED)
    _check(row, Setting(33, 1, "HND"), _DROPPED)


@pytest.mark.parametrize("row", ATTENTION, ids=lambda row: row.reason)
def test_either_layout_gives_the_same_bits(row: LayerRow) -> None:
    outs: list[Tensor] = []
    for layout in ("HND", "NHD"):
        bench = Bench(row, Setting(4, 2, layout))
        steps = ((30, 3), (1, 1), (9, 13), (1, 0))
        starts = {"a": 0, "b": 0}
        for counts in steps:
            work = []
            for name, count in zip("ab", counts, strict=True):
                start = starts[name]
                work += [(name, _tokens(name)[start : start + count])] if count else []
                starts[name] = start + count
            outs += bench.step(work).values()
    assert all(torch.equal(a, b) for a, b in zip(outs[:7], outs[7:], strict=True))


@pytest.mark.parametrize("row", (*ONE_OF_EACH, *ATTENTION[1:]), ids=lambda row: row.reason)
def test_any_order_of_pages_gives_the_same_bits(row: LayerRow) -> None:
    outs: list[Tensor] = []
    for page_seed in range(5):
        bench = Bench(row, Setting(4, 2, page_seed=page_seed))
        bench.step([("other", _tokens("b"))])
        first = bench.step([("a", _tokens("a")[:30]), ("other", _tokens("c")[:1])])["a"]
        outs.append(torch.cat([first, bench.step([("a", _tokens("a")[30:])])["a"]]))
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize("row", ONE_OF_EACH, ids=lambda row: row.reason)
def test_the_harness_sees_a_layer_that_forgets(row: LayerRow) -> None:
    """The same tokens give other outputs without those before them."""
    x = _tokens("a")
    whole, tail = alone(row, x), alone(row, x[20:])
    assert (whole[20:] - tail).abs().max() > 0.05 * whole.abs().max()
