"""Entries of several tokens: what the plan says of them."""

import pytest
import torch

from hybridrt.cache.spec import CacheSpec, State, Window, entries_of_block
from tests.cache.stand_ins import StandIn, attention, plan_of

MIB = 2**20


def compressed(rate: int, block: int, bytes_per_entry: int = 64) -> StandIn:
    """A layer that keeps an entry of every `rate` tokens."""
    shape = (entries_of_block(block, rate), bytes_per_entry // 2)
    return StandIn(CacheSpec("full", (State("entries", shape, torch.bfloat16, rate),), block))


@pytest.mark.parametrize("block", range(1, 20))
@pytest.mark.parametrize("rate", [1, 2, 3, 4, 7, 16, 50])
def test_a_block_has_room_for_every_entry_that_ends_in_it(rate: int, block: int) -> None:
    most = max(
        sum((t + 1) % rate == 0 for t in range(start, start + block))
        for start in range(0, 10 * rate * block, block)
    )
    assert entries_of_block(block, rate) == most


def test_entries_are_a_group_with_tokens_and_cost_what_they_take() -> None:
    plan = plan_of([attention(32), compressed(4, 16), compressed(16, 16)], MIB)
    assert [group.name for group in plan.groups] == ["full"]
    assert [layer.bytes_per_token for layer in plan.layers] == [32, 16, 4]
    assert [layer.tokens_per_entry for layer in plan.layers] == [1, 4, 16]
    assert not any("entries" in note for note in plan.notes)


def _notes(block: int) -> list[str]:
    layers = [attention(8, block), compressed(4, block), compressed(128, block, 512)]
    plan = plan_of(layers, 16 * MIB, page_size=block)
    return [note for note in plan.notes if "stay empty" in note]


def test_places_that_stay_empty_are_said() -> None:
    """Of 8 + 16 + 32 bytes a token 28 are empty: eight places of 512 bytes for one entry."""
    (note,) = _notes(16)
    assert note.startswith("50.0 % of what a token takes")
    assert "of up to 128 tokens, a kernel block of 16. With page_size=128 there are none" in note
    assert _notes(48) and not _notes(128) and not _notes(256)


def test_windows_have_no_say_in_it() -> None:
    plan = plan_of([attention(16, window=Window(128)), compressed(4, 16)], MIB)
    assert not any("stay empty" in note for note in plan.notes)
