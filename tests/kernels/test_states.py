"""Where states are read from and written to."""

import pytest
import torch

from hybridrt.kernels.reference.states import (
    load_states,
    prefill_chunks,
    prefill_states,
    store_states,
)
from tests.harness.batches import STATES, Row, make_batch, pages_of


def _poisoned(pages: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((pages, 3, 5), torch.nan, dtype=dtype)


def test_a_new_sequence_starts_from_zeros_whatever_stands_in_its_page(
    dtype: torch.dtype, device: str
) -> None:
    cache = _poisoned(6, dtype).to(device)
    cache[2], cache[5] = 7.0, 3.0  # a state that another left, and one to be continued
    pages = torch.tensor([4, 2, 5], device=device)
    rows = [Row(0, 3, page=4), Row(0, 1, page=2), Row(6, 2, page=5)]
    batch = make_batch(rows, num_decodes=0, device=device)
    states = load_states(cache, pages, batch, slice(0, 3), torch.float32)
    assert states.dtype == torch.float32
    assert states[:2].eq(0).all()
    assert states[2].eq(3).all()


def test_loading_copies(dtype: torch.dtype, device: str) -> None:
    cache = torch.ones(2, 3, 5, dtype=dtype, device=device)
    batch = make_batch([Row(4, 1, page=1), Row(2, 5)], num_decodes=1, device=device)
    load_states(cache, batch.state_pages(STATES), batch, slice(0, 2), dtype).zero_()
    assert cache.eq(1).all()


def test_storing_changes_only_the_pages_of_the_batch(dtype: torch.dtype, device: str) -> None:
    pool = torch.full((6, 4 + 15 + 2), torch.nan, dtype=dtype, device=device)
    cache = pool[:, 4:19].unflatten(1, (3, 5))  # as a layer's rows of a pool
    states = torch.randn(2, 3, 5, device=device)
    store_states(cache, torch.tensor([4, 1], device=device), states)
    assert torch.equal(cache[4], states[0].to(dtype))
    assert torch.equal(cache[1], states[1].to(dtype))
    assert pool[[0, 2, 3, 5]].isnan().all()
    assert pool[:, :4].isnan().all() and pool[:, 19:].isnan().all()


def test_what_is_stored_is_what_is_loaded(device: str) -> None:
    cache = _poisoned(5, torch.float32).to(device)
    rows = [Row(9, 1, page=3), Row(9, 1, page=0), Row(9, 4, page=4)]
    batch = make_batch(rows, num_decodes=2, device=device)
    pages, states = batch.state_pages(STATES), torch.randn(3, 3, 5, device=device)
    store_states(cache, pages, states)
    for some in (slice(0, 3), slice(0, 2), slice(2, 3)):
        assert torch.equal(load_states(cache, pages, batch, some, torch.float32), states[some])


CUT = [
    Row(3, 1, page=5),
    Row(0, 4, page=1),
    Row(9, 2, page=2, initial_page=6),
    Row(11, 1, page=3, initial_page=2, follows=True),
    Row(12, 7, page=4, initial_page=3, follows=True),
    Row(8, 1, page=7, initial_page=6),
]
"""A decode, a row that begins, a chunk cut twice behind a checkpoint, and another behind it."""


@pytest.mark.parametrize(
    ("rows", "num_decodes", "turns"),
    [
        (CUT, 1, [(0, 3), (3, 4), (4, 6)]),
        (CUT[1:3], 0, [(0, 2)]),
        (CUT[:1], 1, [(0, 1)]),
    ],
    ids=["cut", "prefills", "decodes"],
)
def test_a_turn_ends_where_a_row_follows(
    rows: list[Row], num_decodes: int, turns: list[tuple[int, int]]
) -> None:
    batch = make_batch(rows, num_decodes=num_decodes)
    assert batch.turns == [slice(*turn) for turn in turns]


def test_a_chunk_is_a_row_with_those_that_follow() -> None:
    chunks = prefill_chunks(make_batch(CUT, num_decodes=1))
    assert [[row.row for row in chunk] for chunk in chunks] == [[1], [2, 3, 4], [5]]
    assert prefill_chunks(make_batch(CUT[:1], num_decodes=1)) == []


def test_a_row_that_follows_gets_what_the_row_before_it_makes(device: str) -> None:
    cache = _poisoned(9, torch.bfloat16).to(device)
    cache[5], cache[6] = 1.0, 100.0
    batch = make_batch(CUT, num_decodes=1, device=device)
    seen: list[tuple[int, float]] = []
    for row, state in prefill_states(cache, *pages_of(batch), batch, torch.float32):
        assert state.eq(state[0, 0]).all()
        seen.append((row.row, state[0, 0].item()))
        state += row.row
    assert seen == [(1, 0.0), (2, 100.0), (3, 102.0), (4, 105.0), (5, 100.0)]
    left = [cache[page, 0, 0].item() for page in (5, 1, 2, 3, 4, 6, 7)]
    assert left == [1.0, 1.0, 102.0, 105.0, 109.0, 100.0, 105.0]
    assert cache[[0, 8]].isnan().all()
