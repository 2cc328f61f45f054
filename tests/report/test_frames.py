"""Maps over time: what is packed can be unpacked, and stays small."""

import numpy as np
import pytest

from hybridrt.report.frames import MOST_FRAMES, MOST_PAGES, Frame, pack_frames, page_counts
from tests.report.stand_ins import PERIOD, hand_made_frames, hand_made_map, plan_of


def unpacked(packed):
    """Of every frame: slab -> (group, codes of its pages), as the page's script has it."""
    now = {place: (-1, []) for place in range(len(packed["slabs"]))}
    for frame in packed["frames"]:
        for place, group, runs in frame["changed"]:
            codes = np.repeat(runs[::2], runs[1::2]).tolist()
            now[place] = (group, codes)
        yield {packed["slabs"][place]: slab for place, slab in now.items()}


def test_every_page_of_every_frame_comes_back(tmp_path):
    planned = plan_of(PERIOD, tmp_path)
    frames = hand_made_frames(planned, 7)
    packed = pack_frames(frames)
    names = packed["sequences"]
    for frame, slabs in zip(frames, unpacked(packed), strict=True):
        found = frame.map
        for slab, (group, codes) in slabs.items():
            assert group == found.slab_groups[slab]
            if group < 0:
                assert codes == []
                continue
            size = planned.groups[group].pages_per_slab
            here = found.pages[group][slab * size : (slab + 1) * size].tolist()
            named = [found.sequences[c] if c >= 0 else c for c in here]
            assert [names[c] if c >= 0 else c for c in codes] == named
    assert packed["slabs_left_out"] + len(packed["slabs"]) == np.count_nonzero(
        frames[0].map.slab_groups >= 0
    )


def test_what_does_not_change_is_not_repeated(tmp_path):
    found = hand_made_map(plan_of(PERIOD, tmp_path), 0)
    frames = [Frame("", str(n), 0, 0, found) for n in range(3)]
    assert [len(frame["changed"]) > 0 for frame in pack_frames(frames)["frames"]] == [
        True,
        False,
        False,
    ]


def test_very_long_runs_and_very_large_pools_are_thinned_and_say_so(tmp_path):
    planned = plan_of(PERIOD, tmp_path, memory=2**33)
    found = hand_made_map(planned, 0)
    frames = [Frame("", str(n), 0, 0, found) for n in range(3 * MOST_FRAMES)]
    packed = pack_frames(frames)
    assert len(packed["frames"]) <= MOST_FRAMES + 1
    assert packed["every"] == 3
    assert [packed["frames"][n]["text"] for n in (0, 1, -1)] == ["0", "3", str(len(frames) - 1)]
    shown = sum(
        planned.groups[group].pages_per_slab for _, group, _ in packed["frames"][0]["changed"]
    )
    assert shown <= MOST_PAGES and packed["slabs_left_out"] > 0


def test_the_first_frame_shown_has_the_most_sharing(tmp_path):
    packed = pack_frames(hand_made_frames(plan_of(PERIOD, tmp_path), 9))
    shared = [sum(count["shared"] for count in frame["counts"]) for frame in packed["frames"]]
    assert shared[packed["start"]] == max(shared) > min(shared)


def test_counts_are_of_all_pages(tmp_path):
    found = hand_made_map(plan_of(PERIOD, tmp_path), 3)
    for counts, pages in zip(page_counts(found), found.pages, strict=True):
        assert sum(counts.values()) == np.count_nonzero(pages > -4)


def test_no_frame_is_refused():
    with pytest.raises(ValueError, match="at least one frame"):
        pack_frames([])
