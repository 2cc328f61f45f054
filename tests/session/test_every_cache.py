"""What holds of a session, whatever its layers keep."""

from pathlib import Path

import pytest
import torch

from tests.harness.rows import OF_EACH_CACHE
from tests.session.open_sessions import DRAWN, GREEDY, OTHER, PROMPT, cold, nothing_left, open_llm


@pytest.mark.parametrize("name", OF_EACH_CACHE)
def test_appended_forked_cut_saved_and_loaded(name: str, tmp_path: Path) -> None:
    """Whatever was done to it, a session generates what a cold run does from its tokens."""
    llm = open_llm(name)
    with nothing_left(llm), llm.session(PROMPT[:11]) as session:
        _ = session.logits
        session.append(PROMPT[11:])
        assert session.generate(DRAWN).outputs[0].token_ids == cold(name, PROMPT, DRAWN)
        fork = session.fork()
        fork.append(OTHER)
        session.truncate(len(PROMPT) - 8, recompute=True)
        assert session.token_ids == PROMPT[:-8]
        session.save(tmp_path / "session")
        for one in (session, fork):
            before = one.token_ids
            assert one.generate(GREEDY).outputs[0].token_ids == cold(name, before, GREEDY)
        fork.close()
    other = open_llm(name, max_num_seqs=3)
    with nothing_left(other), other.load_session(tmp_path / "session") as loaded:
        assert loaded.token_ids == PROMPT[:-8]
        assert loaded.generate(GREEDY).outputs[0].token_ids == cold(name, PROMPT[:-8], GREEDY)


@pytest.mark.parametrize("name", OF_EACH_CACHE)
def test_every_layer_can_be_read_and_reads_what_was_saved(name: str, tmp_path: Path) -> None:
    with open_llm(name).session(PROMPT) as session:
        session.save(tmp_path / "session")
        with open_llm(name).load_session(tmp_path / "session") as other:
            for ours, theirs in zip(session.layers, other.layers, strict=True):
                found, given = ours.read(), theirs.read()
                assert found and found.keys() == given.keys()
                assert all(torch.equal(tensor, given[key]) for key, tensor in found.items())
