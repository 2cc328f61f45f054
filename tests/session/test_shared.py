"""What a session has computed is there for others, wherever the session came from."""

from pathlib import Path

import pytest

from hybridrt import LLM
from tests.session.open_sessions import (
    ATTENTION,
    DEEPSEEK,
    DRAWN,
    EVERY_KIND,
    EVERY_STATE,
    LONGROPE,
    MAMBA,
    PROMPT,
    WINDOWS,
    cold,
    open_llm,
)

NAMES = (ATTENTION, DEEPSEEK, WINDOWS, EVERY_KIND, EVERY_STATE, MAMBA, LONGROPE)


def assert_found(llm: LLM, name: str, tokens: list[int], least: int) -> None:
    (output,) = llm.generate([tokens], DRAWN)
    assert output.num_cached_tokens >= least
    assert output.outputs[0].token_ids == cold(name, tokens, DRAWN)


@pytest.mark.parametrize("name", NAMES)
def test_while_it_is_open(name: str) -> None:
    llm = open_llm(name)
    with llm.session(PROMPT) as session:
        _ = session.logits
        more = [*PROMPT, 5, 6, 7]
        assert_found(llm, name, more, len(PROMPT) // llm.config.page_size * llm.config.page_size)


@pytest.mark.parametrize("name", NAMES)
def test_after_it_was_loaded(name: str, tmp_path: Path) -> None:
    with open_llm(name).session(PROMPT) as session:
        session.save(tmp_path / "session")
    llm = open_llm(name)
    with llm.load_session(tmp_path / "session") as session:
        session.append([5, 6, 7])
        _ = session.logits
        full = (len(PROMPT) + 3) // llm.config.page_size * llm.config.page_size
        assert_found(llm, name, [*PROMPT, 5, 6, 7, 8], full)
        with session.fork() as other:
            other.append([9] * 9)
            _ = other.logits
            assert_found(llm, name, [*PROMPT, 5, 6, 7, *[9] * 9, 8], full)
        assert session.generate(DRAWN).outputs[0].token_ids == cold(name, [*PROMPT, 5, 6, 7], DRAWN)
