"""A long time under load: nothing leaks, nothing grows, and all that is read is right."""

from collections import Counter

import pytest

from hybridrt.cache import prefix
from tests.reuse.cache_checks import assert_all, prefix_of
from tests.reuse.soak import Soak, full_reader

REQUESTS = 1_600


@pytest.mark.parametrize("with_windows", [True, False])
def test_a_full_pool_serves_request_after_request(
    with_windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "MOST_GHOSTS", 300)
    soak = Soak(REQUESTS, reader=full_reader(with_windows=with_windows))
    most: list[Counter[str]] = [Counter(), Counter()]
    for step, gone in enumerate(soak.run()):
        half = most[gone > REQUESTS // 2]
        half |= Counter(soak.sizes())
        if step % 100 == 0:
            assert_all(soak.reader)
    early, late = most
    for name, size in late.items():
        assert size <= 1.25 * early[name] + 16, f"{name} grow from {early[name]} to {size}"
    assert min(soak.happened[event] for event in ("abort", "preempt", "fork", "finish")) >= 20
    assert {"hit", "no match", "evicted", "salt differs"} <= soak.notes.keys()
    assert soak.cached_tokens > 0.2 * soak.prompt_tokens


def test_no_line_holds_on_to_what_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node holds its parents, so that the tree of long ago would stay in the host's memory."""
    monkeypatch.setattr(prefix, "MOST_GHOSTS", 100)
    soak = Soak(300)
    for _ in soak.run():
        pass
    cache = prefix_of(soak.reader.pages)
    for line in (cache.windows.behind, cache.windows.last):
        for (_, page), (node, slot, number) in line.items():
            assert node.holder(number).page(slot, number) == page
