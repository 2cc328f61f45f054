"""Reads the states that sequences start a step with, and writes back those they end it with."""

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor


def load_states(
    cache: Shaped[Tensor, "  pages *state"],
    pages: Int64[Tensor, " rows"],
    has_initial_state: Bool[Tensor, " rows"],
    dtype: torch.dtype,
) -> Float[Tensor, "  rows *state"]:
    """A copy of each row's state; zeros for a row that begins a sequence.

    What stands in the page of a new sequence is another's, or poison, and not read.
    """
    states = cache[pages].to(dtype)
    fresh = ~has_initial_state.view(-1, *[1] * (states.dim() - 1))
    return states.masked_fill_(fresh, 0)


def store_states(
    cache: Shaped[Tensor, "  pages *state"],
    pages: Int64[Tensor, " rows"],
    states: Shaped[Tensor, "  rows *state"],
) -> None:
    """Writes each row's state to its page, in the cache's dtype."""
    cache[pages] = states.to(cache.dtype)
