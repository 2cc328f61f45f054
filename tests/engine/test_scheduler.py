"""The scheduler: first come, first served, inside its budgets, and everyone finishes."""

import contextlib
import functools
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt.engine.scheduler import Row
from tests.engine.page_reader import PageReader, continuation, small_plan

LONGEST = 22


def tight(num_tokens: int, **options: int) -> PageReader:
    """A cache of pages of one token with room for `num_tokens` and one state a sequence."""
    plan = small_plan(1, 1, 16 * num_tokens)
    assert plan.slab_bytes == 16
    return PageReader(plan, **options)


def cut(rows: list[Row]) -> dict[str, tuple[int, int]]:
    return {row.sequence.sequence_id: (row.start, row.stop) for row in rows}


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt_tokens: int
    max_tokens: int
    abort_after: int | None = None


@dataclass(frozen=True)
class Traffic:
    arrivals: tuple[Arrival, ...]
    failing_steps: frozenset[int] = frozenset()


def traffic(*, aborts: bool = False, failures: bool = False) -> st.SearchStrategy[Traffic]:
    arrival = st.builds(
        Arrival,
        step=st.integers(0, 6),
        prompt_tokens=st.integers(1, 12),
        max_tokens=st.integers(1, 10),
        abort_after=st.none() | st.integers(0, 12) if aborts else st.none(),
    )
    steps = st.frozensets(st.integers(0, 30), max_size=6) if failures else st.just(frozenset())
    arrivals = st.lists(arrival, min_size=3, max_size=8).map(tuple)
    return st.builds(Traffic, arrivals=arrivals, failing_steps=steps)


@functools.cache
def least_memory(page_size: int, block: int) -> int:
    """The least with which the longest request fits."""
    for memory in range(64, 2**16, 16):
        with contextlib.suppress(ValueError):
            if (small_plan(page_size, block, memory).longest_sequence() or 0) >= LONGEST:
                return memory
    raise AssertionError


@st.composite
def readers(draw: st.DrawFn) -> PageReader:
    page_size, block = draw(st.sampled_from([(1, 1), (4, 4), (4, 2), (16, 4)]))
    memory = least_memory(page_size, block) + draw(st.sampled_from([0, 16, 32, 128, 400]))
    options = {
        "max_num_seqs": draw(st.integers(2, 5)),
        "max_num_batched_tokens": draw(st.sampled_from([1, 3, 7, 16, 64])),
    }
    return PageReader(small_plan(page_size, block, memory), **options)


def check_rows(reader: PageReader, rows: list[Row]) -> None:
    config = reader.config
    assert rows, "there was something to do"
    assert sum(row.num_tokens for row in rows) <= config.max_num_batched_tokens
    assert len(reader.pages) <= config.max_num_seqs
    assert len(cut(rows)) == len(rows)
    kinds = [row.is_decode for row in rows]
    assert kinds == sorted(kinds, reverse=True)
    for row in rows:
        assert 0 <= row.start < row.stop


def play(reader: PageReader, drawn: Traffic) -> None:
    """Runs the traffic to its end and checks every step and every output."""
    prompts: dict[str, list[int]] = {}
    arrivals = dict(enumerate(drawn.arrivals))
    unfinished = {}
    in_order = True
    for step in range(2000):
        for index, arrival in arrivals.items():
            name = f"request {step:04}-{index}"
            if arrival.step == step:
                prompts[name] = [100 * index + t for t in range(arrival.prompt_tokens)]
                running = reader.add(name, prompts[name], arrival.max_tokens)
                unfinished[name] = (running, arrival)
        for name, (running, arrival) in list(unfinished.items()):
            if arrival.abort_after is not None and step - arrival.step >= arrival.abort_after:
                reader.scheduler.remove(running)
                assert name not in reader.pages
                del unfinished[name]
        assert reader.scheduler.has_unfinished == bool(unfinished)
        if unfinished:
            fails = step in drawn.failing_steps
            # The failure of some rows may let others, behind them, go on first.
            in_order &= not fails
            before = {name: running.num_computed for name, (running, _) in unfinished.items()}
            rows = reader.step(fails=fails)
            check_rows(reader, rows)
            assert all(before[name] == start for name, (start, _) in cut(rows).items() if start)
            for name, (running, arrival) in list(unfinished.items()):
                if running.finish_reason:
                    expected = continuation(prompts[name], arrival.max_tokens)
                    assert running.output_token_ids == expected
                    del unfinished[name]
            holders = [name in reader.pages for name in unfinished]
            assert not in_order or holders == sorted(holders, reverse=True), "not the first come"
        elif step > max(arrival.step for arrival in drawn.arrivals):
            break
    assert not unfinished, "someone starves"
    reader.assert_nothing_is_held()


@given(readers(), traffic())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_everyone_finishes_in_order_inside_the_budgets(reader: PageReader, drawn: Traffic) -> None:
    play(reader, drawn)


@given(readers(), traffic(aborts=True))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_aborting_at_any_time_leaks_nothing_and_changes_no_other(
    reader: PageReader, drawn: Traffic
) -> None:
    play(reader, drawn)


@given(readers(), traffic(aborts=True, failures=True))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_step_that_fails_halfway_is_computed_again(reader: PageReader, drawn: Traffic) -> None:
    play(reader, drawn)


def test_a_long_prompt_is_cut_and_decodes_go_before_it() -> None:
    reader = tight(100, max_num_batched_tokens=5)
    reader.add("a", range(2), 8)
    assert cut(reader.step()) == {"a": (0, 2)}
    b = reader.add("b", range(12), 2)
    assert cut(reader.step()) == {"a": (2, 3), "b": (0, 4)}
    assert cut(reader.step()) == {"a": (3, 4), "b": (4, 8)}
    rows = reader.step()
    assert [row.sequence.sequence_id for row in rows] == ["a", "b"]
    assert cut(rows) == {"a": (4, 5), "b": (8, 12)}
    assert b.output_token_ids == continuation(range(12), 1)
    assert cut(reader.step()) == {"a": (5, 6), "b": (12, 13)}


def test_decode_rows_come_first_though_a_prefill_was_admitted_before() -> None:
    reader = tight(100, max_num_batched_tokens=6)
    reader.add("short", range(1), 8)
    reader.add("long", range(20), 2)
    reader.step()
    first = reader.scheduler.schedule()
    assert [row.is_decode for row in first] == [True, False]


def test_memory_that_runs_out_is_back_pressure_and_not_an_error() -> None:
    reader = tight(8)
    for name in "abcde":
        reader.add(name, range(5), 2)
    for name in "abcde":  # a sequence takes up to 6 pages and a state: no two fit
        assert list(cut(reader.step())) == [name]
        assert reader.scheduler.num_running == 1
        reader.step()
    reader.assert_nothing_is_held()


def test_the_last_admitted_gives_way_and_goes_on_when_there_is_room() -> None:
    reader = tight(12)
    a = reader.add("a", range(4), 6)
    b = reader.add("b", range(4), 6)
    c = reader.add("c", range(2), 1)
    assert list(cut(reader.step())) == ["a", "b"]  # 4 + 4 pages and 2 states of 12
    assert list(cut(reader.step())) == ["a", "b"]
    assert list(cut(reader.step())) == ["a"]
    assert (b.num_preemptions, b.num_computed, b.num_output_tokens) == (1, 0, 2)
    assert "b" not in reader.pages and "c" not in reader.pages  # c waits behind b
    while not a.finish_reason:
        assert list(cut(reader.step())) == ["a"]
    assert list(cut(reader.step())) == ["b", "c"]
    assert b.num_computed == 6 and c.finish_reason
    while reader.scheduler.has_unfinished:
        reader.step()
    assert b.output_token_ids == continuation(range(4), 6)
    assert a.num_preemptions == 0


def test_who_comes_later_waits_behind_the_one_that_gave_way() -> None:
    reader = tight(12)
    reader.add("a", range(4), 6)
    reader.add("b", range(4), 6)
    reader.step()
    reader.step()
    reader.add("c", range(1), 1)
    assert list(cut(reader.step())) == ["a"]
    assert (reader.scheduler.num_running, reader.scheduler.num_waiting) == (1, 2)


def test_no_more_sequences_run_than_are_allowed() -> None:
    reader = tight(100, max_num_seqs=2)
    for name in "abc":
        reader.add(name, range(3), 3)
    for _ in range(3):
        assert list(cut(reader.step())) == ["a", "b"]
    assert list(cut(reader.step())) == ["c"]


def test_sequences_beyond_the_token_budget_wait_their_turn() -> None:
    reader = tight(100, max_num_batched_tokens=2)
    for name in "abc":
        reader.add(name, range(1), 3)
    seen = [list(cut(reader.step())) for _ in range(5)]
    assert seen == [["a", "b"], ["a", "b"], ["a", "b"], ["c"], ["c"]]


def test_removing_a_waiting_sequence_leaves_the_line_in_order() -> None:
    reader = tight(100, max_num_seqs=1)
    a, b, c = (reader.add(name, range(3), 1) for name in "abc")
    reader.scheduler.remove(b)
    assert list(cut(reader.step())) == ["a"]
    assert list(cut(reader.step())) == ["c"]
    assert a.finish_reason and c.finish_reason and not b.finish_reason
    reader.assert_nothing_is_held()


def test_after_a_failed_step_all_its_sequences_start_over_in_their_order() -> None:
    reader = tight(100)
    sequences = [reader.add(name, range(3), 4) for name in "abc"]
    reader.step()
    assert list(cut(reader.step(fails=True))) == ["a", "b", "c"]
    assert len(reader.pages) == 0 and [s.num_preemptions for s in sequences] == [1, 1, 1]
    assert cut(reader.step()) == {"a": (0, 4), "b": (0, 4), "c": (0, 4)}
    while reader.scheduler.has_unfinished:
        reader.step()
    for sequence in sequences:
        assert sequence.output_token_ids == continuation(range(3), 4)


def test_with_nothing_to_do_there_are_no_rows() -> None:
    assert tight(10).step() == []
