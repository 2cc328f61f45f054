"""Where states are read from and written to."""

import torch

from hybridrt.kernels.reference.states import load_states, store_states


def _poisoned(pages: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((pages, 3, 5), torch.nan, dtype=dtype)


def test_a_new_sequence_starts_from_zeros_whatever_stands_in_its_page(
    dtype: torch.dtype, device: str
) -> None:
    cache = _poisoned(6, dtype).to(device)
    cache[2], cache[5] = 7.0, 3.0  # a state that another left, and one to be continued
    pages = torch.tensor([4, 2, 5], device=device)
    fresh = torch.tensor([False, False, True], device=device)
    states = load_states(cache, pages, fresh, torch.float32)
    assert states.dtype == torch.float32
    assert states[:2].eq(0).all()
    assert states[2].eq(3).all()


def test_loading_copies(dtype: torch.dtype, device: str) -> None:
    cache = torch.ones(2, 3, 5, dtype=dtype, device=device)
    pages = torch.tensor([1, 0], device=device)
    load_states(cache, pages, torch.ones(2, dtype=torch.bool, device=device), dtype).zero_()
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
    pages = torch.tensor([3, 0, 4], device=device)
    states = torch.randn(3, 3, 5, device=device)
    store_states(cache, pages, states)
    continued = torch.ones(3, dtype=torch.bool, device=device)
    assert torch.equal(load_states(cache, pages, continued, torch.float32), states)
