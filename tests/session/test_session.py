"""A session's tokens are those of a cold run, however it came to where it is."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrt import LLM, SamplingParams, Session
from hybridrt.cache.slabs import OutOfPages
from tests.session.open_sessions import (
    DRAWN,
    EVERY_KIND,
    EVERY_STATE,
    GREEDY,
    LONGROPE,
    MODELS,
    OTHER,
    PROMPT,
    cold,
    nothing_left,
    open_llm,
)


@pytest.fixture(scope="module")
def llms() -> dict[str, LLM]:
    return {name: open_llm(name) for name in (*MODELS, LONGROPE)}


def assert_goes_on(session: Session, name: str, params: SamplingParams = DRAWN) -> None:
    """Generates what a cold run generates, and has it as its own."""
    before = session.token_ids
    output = session.generate(params)
    expected = cold(name, before, params)
    assert output.outputs[0].token_ids == expected
    assert output.prompt_token_ids == before
    assert session.token_ids == before + expected


@pytest.mark.parametrize("params", [DRAWN, GREEDY], ids=["drawn", "greedy"])
@pytest.mark.parametrize("name", [*MODELS, LONGROPE])
def test_tokens_in_pieces_then_generated_from_are_those_of_a_cold_run(
    llms: dict[str, LLM], name: str, params: SamplingParams
) -> None:
    llm = llms[name]
    with nothing_left(llm), llm.session(PROMPT[:5]) as session:
        for start, stop in ((5, 6), (6, 6), (6, 20), (20, 37)):
            session.append(PROMPT[start:stop])
            if start % 2:
                session.layers[0].read()
        assert_goes_on(session, name, params)
        assert_goes_on(session, name, params)
        session.append(OTHER)
        assert session.num_tokens == len(PROMPT) + 2 * (params.max_tokens or 0) + len(OTHER)
        assert_goes_on(session, name, params)


@pytest.mark.parametrize("name", MODELS)
def test_forks_go_on_alone_in_any_order(llms: dict[str, LLM], name: str) -> None:
    llm = llms[name]
    with nothing_left(llm), llm.session(PROMPT) as first:
        second = first.fork()  # before anything is computed
        assert_goes_on(first, name)
        third = first.fork()
        third.append(OTHER)
        first.append([7])
        _ = first.logits
        fourth = first.fork()
        for session in (second, fourth, third, first):
            assert_goes_on(session, name)
        first.close()
        for session in (third, second, fourth):
            assert_goes_on(session, name)
            session.close()


@pytest.mark.parametrize("name", MODELS)
def test_with_known_logits_the_first_token_needs_no_forward(
    llms: dict[str, LLM], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llms[name]
    with llm.session(PROMPT) as session:
        logits = session.logits
        assert logits.dtype == torch.float32 and logits.shape == (
            llm.engine.model.config.vocab_size,
        )

        def step() -> None:
            raise AssertionError("a step was run")

        monkeypatch.setattr(llm.engine, "step", step)
        one = SamplingParams(temperature=0.8, seed=3, max_tokens=1, logprobs=1)
        (completion,) = session.generate(one).outputs
        assert completion.token_ids == cold(name, PROMPT, one) and completion.logprobs
        monkeypatch.undo()
        assert_goes_on(session, name)


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
def test_beside_requests_and_other_sessions(llms: dict[str, LLM], name: str) -> None:
    llm = llms[name]
    with nothing_left(llm), llm.session(PROMPT) as one, llm.session(OTHER) as two:
        ids = [llm.add_request([9 + i] * (3 + 7 * i), DRAWN) for i in range(4)]
        streams = [session.stream(DRAWN) for session in (one, two)]
        outputs = [[*map(next, streams)] for _ in range(DRAWN.max_tokens or 0)][-1]
        assert [o.outputs[0].token_ids for o in outputs] == [
            cold(name, tokens, DRAWN) for tokens in (PROMPT, OTHER)
        ]
        assert all(next(stream, None) is None for stream in streams)
        done = {o.request_id: o.outputs[0].token_ids for o in llm.step() if o.finished}
        while llm.has_unfinished:
            done |= {o.request_id: o.outputs[0].token_ids for o in llm.step() if o.finished}
        for i, request_id in enumerate(ids):
            assert done[request_id] == cold(name, [9 + i] * (3 + 7 * i), DRAWN)


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
def test_nobody_waits_for_what_an_idle_session_began(llms: dict[str, LLM], name: str) -> None:
    llm = llms[name]
    for length in (1, 3, 4, 5, 9):
        with nothing_left(llm), llm.session(PROMPT[:length]) as session:
            _ = session.logits
            for other in (1, 2, 3, 4, 5, 6, 9, 10):
                (output,) = llm.generate([PROMPT[:other]], GREEDY)
                assert output.outputs[0].token_ids == cold(name, PROMPT[:other], GREEDY)
            session.append(OTHER)
            stream = session.stream(GREEDY)
            next(stream)
            stream.close()  # pyright: ignore[reportAttributeAccessIssue]
            (output,) = llm.generate([session.token_ids], GREEDY)
            assert output.outputs[0].token_ids == cold(name, session.token_ids, GREEDY)


def test_no_more_run_at_once_than_asked_for() -> None:
    llm = open_llm(EVERY_KIND, max_num_seqs=2)
    sessions = [llm.session(PROMPT[:n]) for n in (9, 17, 25, 33)]
    for session in sessions:
        session.layers[0].read()
    streams = [session.stream(DRAWN) for session in sessions]
    while llm.has_unfinished:
        llm._advance()
        assert llm.engine.num_running <= 2
    for session, stream, n in zip(sessions, streams, (9, 17, 25, 33), strict=True):
        *_, last = stream
        assert last.outputs[0].token_ids == cold(EVERY_KIND, PROMPT[:n], DRAWN)
        session.close()


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
def test_a_session_that_gives_way_is_computed_again(llms: dict[str, LLM], name: str) -> None:
    llm = llms[name]
    with nothing_left(llm), llm.session(PROMPT) as session:
        _ = session.logits
        stream = session.stream(DRAWN)
        for _ in range(4):
            next(stream)
        run = session._held.run
        assert run is not None
        llm.engine._scheduler.preempt(run)
        *_, last = stream
        assert last.outputs[0].token_ids == cold(name, PROMPT, DRAWN)
        assert last.metrics.num_preemptions == 1
        assert_goes_on(session, name)


def test_when_sessions_hold_all_room_a_request_is_told_so_and_runs_later() -> None:
    llm = open_llm(EVERY_KIND, cache_memory="100KiB", max_model_len=None)
    sessions: list[Session] = []
    with pytest.raises(OutOfPages, match=r"idle sessions hold their pages.*close a session"):
        for i in range(100):
            sessions.append(llm.session([3 + i] * 40))
            _ = sessions[-1].logits
    with pytest.raises(OutOfPages, match="idle sessions hold"):
        llm.generate([PROMPT * 2], GREEDY)
    assert not llm.engine._entries and not llm.has_unfinished
    with pytest.raises(OutOfPages):
        for _ in range(100):
            sessions.append(sessions[0].fork())
    assert_goes_on(sessions[0], EVERY_KIND, SamplingParams(max_tokens=1, seed=1))
    for session in sessions[1:]:
        session.close()
    (output,) = llm.generate([PROMPT], GREEDY)
    assert output.outputs[0].token_ids == cold(EVERY_KIND, PROMPT, GREEDY)
    sessions[0].close()


@pytest.mark.parametrize("fails_at", [0, 1, 2, 5])
def test_after_a_step_that_failed_it_goes_on_as_if_nothing_were(
    fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = open_llm(EVERY_STATE)
    with nothing_left(llm), llm.session(PROMPT[:9]) as session:
        session.layers[0].read()
        session.append(PROMPT[9:])
        run, count = llm.engine._runner.run, [0]

        def failing(rows: list) -> list:
            count[0] += 1
            if count[0] > fails_at:
                run(rows)
                raise RuntimeError("broken")
            return run(rows)

        monkeypatch.setattr(llm.engine._runner, "run", failing)
        with pytest.raises(RuntimeError, match="broken"):
            session.generate(DRAWN)
        monkeypatch.undo()
        assert session.token_ids[: len(PROMPT)] == PROMPT
        assert_goes_on(session, EVERY_STATE)


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
def test_a_stream_that_is_closed_leaves_the_tokens_so_far(llms: dict[str, LLM], name: str) -> None:
    llm = llms[name]
    for seen in range(1, 6):
        with nothing_left(llm), llm.session(PROMPT) as session:
            stream = session.stream(DRAWN)
            outputs = [next(stream) for _ in range(seen)]
            with pytest.raises(ValueError, match="is generating"):
                session.append([1])
            stream.close()  # pyright: ignore[reportAttributeAccessIssue]
            assert session.token_ids == PROMPT + outputs[-1].outputs[0].token_ids
            assert_goes_on(session, name)


def test_closing_frees_everything_even_while_it_generates(llms: dict[str, LLM]) -> None:
    llm = llms[EVERY_KIND]
    with nothing_left(llm):
        session = llm.session(PROMPT)
        stream = session.stream(DRAWN)
        next(stream)
        session.close()
        session.close()
        assert session.closed and "closed" in repr(session)
        assert list(stream) == []


def test_what_is_wrong_is_refused_by_name(llms: dict[str, LLM]) -> None:
    llm = llms[EVERY_KIND]
    with nothing_left(llm):
        for prompt, message in (
            ([1, 999], r"token id 999 should be in \[0, 131\)"),
            ([1] * 97, "it would have 97; with max_model_len=96 it can have 96"),
            ("text", "a text needs a tokenizer"),
        ):
            with pytest.raises(ValueError, match=message):
                llm.session(prompt)
        with pytest.raises(ValueError, match="the prompt has another one"):
            llm.session({"prompt_token_ids": [1], "cache_salt": "a"}, cache_salt="b")
        with llm.session() as session:
            session.append([])
            for params, message in (
                (GREEDY, "has no tokens"),
                ({"n": 1}, "should be a SamplingParams"),
            ):
                with pytest.raises(ValueError, match=message):
                    session.generate(params)  # pyright: ignore[reportArgumentType]
            with pytest.raises(ValueError, match="has no tokens, so no logits"):
                _ = session.logits
            session.append([1, 2])
            for params, message in (
                (SamplingParams(n=2), "n=2: a session is one sequence"),
                (SamplingParams(prompt_logprobs=1), "prompt_logprobs=1"),
                (SamplingParams(logprobs=500), "logprobs=500 should be at most 131"),
                (SamplingParams(stop=["x"]), "has no tokenizer"),
            ):
                with pytest.raises(ValueError, match=message):
                    session.generate(params)
            with pytest.raises(ValueError, match="should be a text or token ids"):
                session.append({"prompt": "x"})  # pyright: ignore[reportArgumentType]
            assert session.token_ids == [1, 2]
            full = llm.session([1] * 96)
            assert full.layers[1].read()["ssm_state"].isfinite().all()
            with pytest.raises(ValueError, match="the prompt has 96 tokens"):
                full.generate(GREEDY)
            full.close()
        for use in (
            lambda: session.append([1]),
            lambda: session.token_ids,
            lambda: session.layers,
            lambda: session.fork(),
            lambda: session.generate(),
            lambda: session.truncate(0),
            lambda: session.save("nowhere"),
        ):
            with pytest.raises(ValueError, match="is closed; open another"):
                use()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([EVERY_KIND, EVERY_STATE, LONGROPE]))
def test_any_order_of_operations_gives_the_tokens_of_a_cold_run(seed: int, name: str) -> None:
    """Several sessions, doing anything in turn, and requests beside them."""
    draw, llm = random.Random(seed), _llm(name)
    with nothing_left(llm):
        sessions = [llm.session()]
        params = SamplingParams(temperature=0.9, seed=seed % 99, max_tokens=3, ignore_eos=True)
        for _ in range(14):
            session = draw.choice(sessions)
            operation = draw.randrange(6)
            if operation < 2 and session.num_tokens < 60:
                session.append([draw.randrange(60) for _ in range(draw.randrange(12))])
            elif operation == 2 and 0 < session.num_tokens < 90:
                assert_goes_on(session, name, params)
            elif operation == 3 and len(sessions) < 4:
                sessions.append(session.fork())
            elif operation == 4:
                session.truncate(draw.randint(0, session.num_tokens), recompute=True)
            elif operation == 5:
                draw.choice(session.layers).read()
                llm.generate([[*session.token_ids[:5], 1]], params)
        for session in sessions:
            if 0 < session.num_tokens < 90:
                assert_goes_on(session, name, params)
            session.close()


_LLMS: dict[str, LLM] = {}


def _llm(name: str) -> LLM:
    if name not in _LLMS:
        _LLMS[name] = open_llm(name)
    return _LLMS[name]
