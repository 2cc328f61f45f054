"""The recorded run shows what it says: misses, hits, sharing, kept and freed pages."""

import numpy as np
import pytest

from hybridrt.report.frames import CACHED, SHARED
from hybridrt.report.recording import record, scenes


def test_the_run_has_a_miss_a_hit_a_junction_and_a_stranger(demo_run):
    frames, _ = demo_run
    told = [frame.text for frame in frames if "from the cache" in frame.text]
    assert len({frame.scene for frame in frames}) == 1 + len(scenes([1]))
    assert "first has 0 of its" in told[0] and "(no match)" in told[0]
    assert "(hit)" in told[1] and "again" in told[1]
    assert any("branch-2" in text and "(hit)" in text for text in told)
    assert "other has 0 of its" in told[-1]


def test_shared_cached_and_own_pages_are_all_seen(demo_run):
    frames, _ = demo_run
    pages = [np.concatenate(frame.map.pages) for frame in frames]
    assert any((page == SHARED).any() for page in pages)
    assert any((page == CACHED).any() for page in pages)
    assert max(len(frame.map.sequences) for frame in frames) == 3
    assert all(frame.running == len(frame.map.sequences) for frame in frames)
    assert frames[0].tokens == 0 and max(frame.tokens for frame in frames) > 600


def test_nothing_is_left_behind(demo_llm, demo_run):
    assert not demo_llm.has_unfinished and not len(demo_llm.engine.pages)
    assert demo_run[0][-1].running == 0


@pytest.mark.parametrize("tokens", [[7], [7, 8], [7, 8, 9]])
def test_short_prompts_are_recorded_too(demo_llm, tokens):
    assert record(demo_llm, tokens)[-1].running == 0


def test_a_prompt_without_room_behind_it_is_refused(demo_llm):
    with pytest.raises(ValueError, match="from 1 to 2047"):
        record(demo_llm, [1] * 2048)
    with pytest.raises(ValueError, match="0 tokens"):
        record(demo_llm, [])
