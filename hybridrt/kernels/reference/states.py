"""Reads the states that sequences start a step with, and writes back those they end it with."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from hybridrt.batch import Prefill, Rows
from hybridrt.kernels.reference.padding import live_only, may_pad


def read_states(
    cache: Shaped[Tensor, "  pages *state"], pages: Int64[Tensor, " rows"], dtype: torch.dtype
) -> Shaped[Tensor, "  rows *state"]:
    """A copy of the states in these pages; zeros for a page of -1, which is padding."""
    if not may_pad(pages):
        return cache[pages].to(dtype)
    states = cache[pages.clamp(min=0)].to(dtype)
    return states.masked_fill_((pages < 0).view(-1, *[1] * (states.dim() - 1)), 0)


def load_states(
    cache: Shaped[Tensor, "  pages *state"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    rows: slice,
    dtype: torch.dtype,
) -> Shaped[Tensor, "  loaded *state"]:
    """A copy of the states that these rows start from; zeros for a row that begins a sequence.

    What stands in the page of a new sequence is another's, or poison, and not read.
    """
    states = read_states(cache, initial_pages[rows], dtype)
    if rows.stop > batch.num_decodes:
        fresh = ~batch.has_initial_state[rows].view(-1, *[1] * (states.dim() - 1))
        states.masked_fill_(fresh, 0)
    return states


def store_states(
    cache: Shaped[Tensor, "  pages *state"],
    pages: Int64[Tensor, " rows"],
    states: Shaped[Tensor, "  rows *state"],
) -> None:
    """Writes each row's state to its page, in the cache's dtype; none to a page of -1."""
    states, pages = live_only(states.to(cache.dtype), pages, cache[:1])
    cache[pages] = states


def prefill_states(
    cache: Shaped[Tensor, "  pages *state"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    dtype: torch.dtype,
) -> Iterator[tuple[Prefill, Float[Tensor, " *state"]]]:
    """Each prefill row with a copy of the state it starts from, in order.

    Whoever iterates makes of it, in place, the state that the row leaves. That is written to
    the row's page before a row that follows is read, and at last when the iteration ends.
    """
    prefills, n = batch.prefills, batch.num_decodes
    for turn in batch.turns if prefills else []:
        rows = slice(max(turn.start, n), turn.stop)
        states = load_states(cache, initial_pages, batch, rows, dtype)
        yield from zip(prefills[rows.start - n : rows.stop - n], states, strict=True)
        store_states(cache, pages[rows], states)


def prefill_chunks(batch: Rows) -> list[list[Prefill]]:
    """The prefill rows, each chunk with those that follow in one list."""
    chunks: list[list[Prefill]] = []
    prefills = batch.prefills
    follows = batch.follows.numpy()[batch.num_decodes :].tolist()
    for row, goes_on in zip(prefills, follows, strict=True):
        if goes_on:
            chunks[-1].append(row)
        else:
            chunks.append([row])
    return chunks
