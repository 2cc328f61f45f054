"""A session that was cut off goes on as one that never had more, or the cut is refused."""

import re
from typing import Any

import numpy as np
import pytest

from hybridrt import LLM
from tests.session.open_sessions import (
    ATTENTION,
    CHUNKS,
    DEEPSEEK,
    DRAWN,
    EVERY_KIND,
    EVERY_STATE,
    INDEXED,
    LONGROPE,
    MAMBA,
    NGRAMS,
    PROMPT,
    WINDOWS,
    cold,
    nothing_left,
    open_llm,
)

NAMES = (
    ATTENTION,
    DEEPSEEK,
    WINDOWS,
    CHUNKS,
    EVERY_KIND,
    EVERY_STATE,
    MAMBA,
    LONGROPE,
    INDEXED,
    NGRAMS,
)


@pytest.fixture(scope="module")
def llms() -> dict[str, LLM]:
    return {name: open_llm(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recompute", [False, True])
def test_cut_to_any_length_it_goes_on_as_a_cold_run_or_is_refused(
    llms: dict[str, LLM], name: str, recompute: bool
) -> None:
    llm, possible, nearest = llms[name], [], set[int]()
    with nothing_left(llm), llm.session(PROMPT[:30]) as whole:
        _ = whole.logits
        whole.append(PROMPT[30:34])
        for length in (34, 33, 30, 29, 28, 27, 24, 20, 17, 16, 13, 12, 9, 8, 5, 1, 0):
            with whole.fork() as session:
                try:
                    session.truncate(length, recompute=recompute)
                except ValueError as error:
                    assert f"truncate({length}, recompute=True)" in str(error)
                    found = re.search(r"the nearest are (\d+) and (\d+);", str(error))
                    assert found is not None
                    assert 0 <= int(found[1]) < length < int(found[2]) <= 34
                    assert session.token_ids == PROMPT[:34]
                    nearest.update(map(int, found.groups()))
                    continue
                possible.append(length)
                assert session.token_ids == PROMPT[:length]
                session.append(PROMPT[length:20])
                (completion,) = session.generate(DRAWN).outputs
                tokens = PROMPT[: max(length, 20)]
                assert completion.token_ids == cold(name, tokens, DRAWN)
        for length in nearest:
            with whole.fork() as session:
                session.truncate(length)
                assert session.num_tokens == length
        assert whole.generate(DRAWN).outputs[0].token_ids == cold(name, PROMPT[:34], DRAWN)
    assert {34, 33, 30, 0} <= set(possible)
    if recompute or name in (ATTENTION, DEEPSEEK, INDEXED):
        assert len(possible) == 17
    if not recompute:
        assert bool(nearest) == (name not in (ATTENTION, DEEPSEEK, INDEXED))


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_can_be_said_again(name: str) -> None:
    """States are kept where a turn begins and where it ends, so at most a page is lost."""
    llm = open_llm(name)
    with nothing_left(llm), llm.session(PROMPT[:17]) as session:
        first = session.generate(DRAWN).outputs[0].token_ids
        session.append(PROMPT[17:30])
        session.generate(DRAWN)
        for length in (session.num_tokens, 30 + len(first), 17 + len(first), 17):
            session.truncate(length)
            tokens = session.token_ids
            with session.fork() as again:
                output = again.generate(DRAWN)
                assert output.num_cached_tokens >= length - 2 - llm.config.page_size
                assert output.outputs[0].token_ids == cold(name, tokens, DRAWN)


def test_a_cut_of_shared_pages_leaves_the_others_alone(llms: dict[str, LLM]) -> None:
    llm = llms[ATTENTION]
    with nothing_left(llm), llm.session(PROMPT) as first, first.fork() as early:
        keys = first.layers[0].read()["k"]
        late = first.fork()
        first.truncate(21)
        first.append([1, 2, 3])
        assert first.generate(DRAWN).outputs[0].token_ids == cold(
            ATTENTION, [*PROMPT[:21], 1, 2, 3], DRAWN
        )
        assert late.layers[0].read()["k"].equal(keys)
        for session in (late, early):
            assert session.generate(DRAWN).outputs[0].token_ids == cold(ATTENTION, PROMPT, DRAWN)
        late.close()


def test_a_length_of_numpy_is_one(llms: dict[str, LLM]) -> None:
    length: Any = np.int64(3)
    with llms[ATTENTION].session(PROMPT) as session:
        session.truncate(length)
        assert session.token_ids == PROMPT[:3]


@pytest.mark.parametrize("length", [-1, 38, 2.0, True, None])
def test_a_length_that_makes_no_sense_is_refused(llms: dict[str, LLM], length: int) -> None:
    with (
        llms[ATTENTION].session(PROMPT) as session,
        pytest.raises(ValueError, match=r"num_tokens=.* should be from 0 to 37"),
    ):
        session.truncate(length)
