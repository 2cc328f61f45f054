"""Stats as rows over time: what an engine did, counted apart, and what stays of it."""

import json
from typing import get_args

import pytest

from hybridrt import LLM, SamplingParams
from hybridrt.cache.finder import CacheNote
from hybridrt.engine import stats_rows

PROMPT = list(range(3, 40))
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    """One whose every step makes a row."""
    monkeypatch.setattr(stats_rows, "ROW_SECONDS", 0.0)
    return LLM("demo", cache_memory="8MiB", max_model_len=256, max_num_batched_tokens=16)


def tokens(rows: list[stats_rows.StatsRow], what: str) -> float:
    return sum(row[f"{what}_tokens_per_second"] * row["seconds"] for row in rows)


def test_rows_add_up_to_what_was_computed(llm: LLM) -> None:
    llm.generate([{"prompt_token_ids": PROMPT}] * 3, GREEDY)
    rows = llm.stats_rows()
    cached = llm.stats()["total"]["cached_tokens"]
    assert tokens(rows, "prompt") == pytest.approx(3 * len(PROMPT) - cached)
    assert tokens(rows, "generated") == pytest.approx(3 * 6)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert max(row["running"] + row["waiting"] for row in rows) == 3
    last = rows[-1]
    assert (last["running"], last["waiting"], last["sessions"]) == (0, 0, 0)
    assert sum(row["note_hit"] for row in rows) == llm.stats()["total"]["notes"].get("hit", 0)


def test_bytes_of_a_row_are_the_pool(llm: LLM) -> None:
    llm.session(PROMPT).generate(GREEDY)
    for row in llm.stats_rows():
        kinds = {group.kind for group in llm.plan.groups}
        parts = [row[f"{what}_{kind}"] for what in ("in_use", "cached", "free") for kind in kinds]
        assert sum(parts) + row["free_slabs"] == llm.plan.pool_bytes
    assert llm.stats_rows()[-1]["in_use_state"] > 0


def test_rows_have_the_same_columns_and_plain_values(llm: LLM) -> None:
    llm.generate({"prompt_token_ids": PROMPT}, GREEDY)
    rows = llm.stats_rows()
    assert json.loads(json.dumps(rows)) == rows
    assert len({tuple(row) for row in rows}) == 1
    assert {f"note_{note.replace(' ', '_')}" for note in get_args(CacheNote)} < rows[0].keys()
    assert {row["hit_rate"] for row in rows} == {0.0, None}


def test_there_is_a_row_at_most_every_half_second_and_one_when_all_is_done(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(stats_rows, "ROW_SECONDS", 0.5)
    monkeypatch.setattr(stats_rows.time, "monotonic", lambda: now[0])
    llm.engine.stats_recorder.add_row(now[0])
    llm.generate({"prompt_token_ids": PROMPT}, GREEDY)
    assert len(llm.stats_rows()) == 1, "it was over at once"
    now[0] += 7
    llm.add_request({"prompt_token_ids": PROMPT}, GREEDY)
    while llm.has_unfinished:
        llm.step()
        now[0] += 0.2
    rows = llm.stats_rows()[1:]
    assert len(rows) >= 2 and [row["running"] for row in rows] == [1] * (len(rows) - 1) + [0]
    assert all(0.5 <= row["seconds"] < 0.7 for row in rows[:-1])


def test_the_last_work_gets_a_row_too(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stats_rows, "ROW_SECONDS", 0.5)
    monkeypatch.setattr(stats_rows.time, "monotonic", lambda: now[0])
    llm.engine.stats_recorder.add_row(now[0])
    with llm.session(PROMPT) as session:
        assert session.logits is not None
        assert len(llm.stats_rows()) == 1, "the last is new"
        now[0] += 0.6
        assert tokens(llm.stats_rows(), "prompt") == pytest.approx(len(PROMPT))
        now[0] += 0.6
        assert len(llm.stats_rows()) == 2, "nothing was done since"
        seen: list[stats_rows.StatsRow] = []
        llm.engine.stats_recorder.listener = lambda row, _: seen.append(row)
        session.append([5, 6, 7])
        assert session.logits is not None
        assert tokens(seen, "prompt") == pytest.approx(3), "without being asked for"


def test_an_aborted_request_leaves_no_row_that_says_it_runs(llm: LLM) -> None:
    name = llm.add_request({"prompt_token_ids": PROMPT}, GREEDY)
    llm.step()
    assert llm.stats_rows()[-1]["running"] == 1
    llm.abort(name)
    assert llm.stats_rows()[-1]["running"] == 0


def test_the_last_rows_are_kept(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(stats_rows.MOST_ROWS + 5):
        llm.engine.stats_recorder.add_row(0.0)
    assert len(llm.stats_rows()) == stats_rows.MOST_ROWS


def test_pending_tokens_of_a_session_count_as_prompt(llm: LLM) -> None:
    session = llm.session(PROMPT)
    assert session.logits is not None
    assert tokens(llm.stats_rows(), "prompt") == pytest.approx(len(PROMPT))
    session.generate(SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    assert tokens(llm.stats_rows(), "prompt") == pytest.approx(len(PROMPT))
