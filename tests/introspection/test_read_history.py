"""`read(position=t)` is what a session of the first t tokens has, and says where it is from."""

from typing import Any

import numpy as np
import pytest
import torch

from hybridrt import LLM
from hybridrt.introspection.layer import SessionLayer
from tests.session.open_sessions import (
    ATTENTION,
    COMPRESSED,
    EVERY_KIND,
    EVERY_STATE,
    GREEDY,
    INDEXED,
    LONGROPE,
    NGRAMS,
    OTHER,
    PROMPT,
    cold,
    nothing_left,
    open_llm,
)

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def assert_as_fresh(layer: SessionLayer, fresh: SessionLayer, position: int) -> str:
    """The same of every row that both have; what the fresh one sees, the other has too."""
    ours, theirs = layer.read(position=position), fresh.read()
    assert ours.keys() == theirs.keys() and ours.axes == theirs.axes
    assert (ours.position, theirs.position, theirs.source) == (position, position, "cache")
    window = layer.plan.window
    if window is not None and position:
        rows = [found.pop("positions").tolist() for found in (ours, theirs)]
        starts = [min(held, default=position) for held in rows]
        assert max(starts) <= window.first_visible(position)
        assert all(held == list(range(at, position)) for held, at in zip(rows, starts, strict=True))
        for found, at in zip((ours, theirs), starts, strict=True):
            for name in [*found]:
                found[name] = found[name][max(starts) - at :]
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, **CLOSE)
    return ours.source


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE, COMPRESSED, INDEXED, NGRAMS])
def test_equals_a_fresh_session_at_every_position(name: str, caching: bool) -> None:
    llm = open_llm(name, enable_prefix_caching=caching)
    fresh = open_llm(name, enable_prefix_caching=False, max_num_batched_tokens=64)
    sources: set[str] = set()
    with nothing_left(llm), llm.session(PROMPT) as session:
        _ = session.logits
        # Backwards, so that little of what is computed for one position is there for another.
        for position in range(len(PROMPT), -1, -1 if caching else -5):
            with fresh.session(PROMPT[:position]) as other:
                for layer, right in zip(session.layers, other.layers, strict=True):
                    sources.add(assert_as_fresh(layer, right, position))
    kinds = {layer.kind for layer in llm.plan.layers}
    expected = {"cache"} | ({"checkpoint"} if caching and "state" in kinds else set())
    assert sources == expected | ({"recomputed"} if kinds != {"full"} else set())


def test_checkpoints_are_named_and_read_where_they_are() -> None:
    llm = open_llm(EVERY_STATE, checkpoint_interval=8)
    with llm.session(PROMPT) as session:
        _ = session.logits
        for layer in session.layers:
            positions = layer.checkpoint_positions
            if layer.kind != "state":
                assert positions == ()
                continue
            assert set(positions) >= {8, 16, 24, 32, len(PROMPT) - 1}
            computed = llm.stats()["total"]["prompt_tokens"]
            for position in positions[:-1]:
                assert layer.read(position).source == "checkpoint"
            assert llm.stats()["total"]["prompt_tokens"] == computed
        state = next(layer for layer in session.layers if layer.kind == "state")
        assert 13 not in state.checkpoint_positions
        assert state.read(13).source == "recomputed"
        assert state.read(13).source == "checkpoint"  # the first one has left it


def test_others_checkpoints_are_not_taken_for_a_sessions_own() -> None:
    llm = open_llm(EVERY_STATE)
    llm.generate([OTHER], GREEDY)
    with llm.session(PROMPT, cache_salt="mine") as mine, llm.session(PROMPT) as session:
        _ = session.logits
        assert mine.layers[1].checkpoint_positions == ()
        assert all(p <= len(PROMPT) for p in session.layers[1].checkpoint_positions)
        assert mine.layers[1].read(20).source == "recomputed"


@pytest.mark.parametrize("name", [EVERY_KIND, ATTENTION, LONGROPE])
def test_a_session_is_what_it_was_before_it_was_read(name: str) -> None:
    llm = open_llm(name)
    with llm.session(PROMPT) as session:
        before = [layer.read() for layer in session.layers]
        logits = session.logits
        for layer in session.layers:
            layer.read(position=len(PROMPT) - 3)
        for layer, tensors in zip(session.layers, before, strict=True):
            given = layer.read()
            assert all(torch.equal(given[name], x) for name, x in tensors.items())
        assert torch.equal(logits, session.logits)
        assert session.generate(GREEDY).outputs[0].token_ids == cold(name, PROMPT, GREEDY)


@pytest.mark.parametrize("position", [-1, len(PROMPT) + 1, 2.0, True, "3"])
def test_positions_that_are_none(position: object) -> None:
    with _llm().session(PROMPT) as session:
        layer = session.layers[0]
        with pytest.raises(ValueError, match=r"should be from 0 to 37"):
            layer.read(position)  # pyright: ignore[reportArgumentType]


def test_a_position_of_numpy_is_one() -> None:
    position: Any = np.int64(16)
    with _llm().session(PROMPT) as session:
        found = session.layers[0].read(position=position)
        assert type(found.position) is int and found.position == 16
        with pytest.raises(ValueError, match="position=38 should be from 0 to 37"):
            session.layers[0].read(position=position + 22)


def test_a_name_that_a_reading_lacks() -> None:
    with _llm().session(PROMPT) as session:
        found = session.layers[0].read()
    with pytest.raises(KeyError, match=r"'q' should be one of \['k', 'v'"):
        found["q"]
    assert found.get("q") is None


def test_closed_and_generating_sessions_are_refused() -> None:
    session = _llm().session(PROMPT)
    layer = session.layers[1]
    stream = session.stream(GREEDY)
    next(stream)
    with pytest.raises(ValueError, match="is generating"):
        layer.read(5)
    stream.close()
    session.close()
    for use in (layer.read, lambda: layer.read(5), layer.view, lambda: layer.pages):
        with pytest.raises(ValueError, match="is closed"):
            use()
    with pytest.raises(ValueError, match="is closed"):
        _ = layer.axes


_LLMS: list[LLM] = []


def _llm() -> LLM:
    if not _LLMS:
        _LLMS.append(open_llm(EVERY_KIND))
    return _LLMS[0]
