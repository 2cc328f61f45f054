"""entry_attention in plain torch: gathers tokens and entries, and attends to both at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.entries import EntryGrid, gather_entries
from hybridrt.kernels.reference.gather import (
    Reach,
    blocks_for,
    decode_places,
    gather_row,
    gather_rows,
)
from hybridrt.kernels.reference.softmax_attention import Softmax, attend_once, masked_attention

_MOST_NUMBERS = 2**24  # scores, or numbers of keys, that are held at once: 64 MiB of float32


@dataclass(frozen=True, slots=True)
class _Caches:
    """The tokens in a window and the entries of all before, in pages."""

    kv: Float[Tensor, "blocks block_size dim"]
    pages: TokenPages
    reach: Reach
    entries: Float[Tensor, "entry_blocks entries_per_block dim"]
    entry_pages: TokenPages
    grid: EntryGrid


def entry_attention(
    q: Float[Tensor, "tokens heads dim"],
    kv: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    entries: Float[Tensor, "entry_blocks entries_per_block dim"],
    entry_pages: TokenPages,
    grid: EntryGrid,
    batch: Rows,
    scale: float,
    window: int,
    sinks: Float[Tensor, " heads"] | None = None,
    selected: Int32[Tensor, "tokens top_k"] | None = None,
) -> Float[Tensor, "tokens heads dim"]:
    """See `hybridrt.kernels.entry_attention`."""
    caches = _Caches(kv, pages, Reach(window), entries, entry_pages, grid)
    softmax = Softmax(scale, sinks)
    out = torch.zeros_like(q)
    n = batch.num_decodes
    if n:
        chosen = None if selected is None else selected[:n]
        out[:n] = _decode(q[:n], caches, batch, softmax, chosen)
    for row in batch.prefills:
        tokens = slice(row.start, row.stop)
        chosen = None if selected is None else selected[tokens]
        out[tokens] = _prefill(q[tokens], caches, row, softmax, chosen)
    return out


def _decode(
    q: Float[Tensor, "rows heads dim"],
    caches: _Caches,
    batch: Rows,
    softmax: Softmax,
    selected: Int32[Tensor, "rows top_k"] | None,
) -> Float[Tensor, "rows heads dim"]:
    rows, rate = len(q), caches.grid.rate
    places = decode_places(caches.pages, batch, caches.kv.shape[1], caches.reach)
    recent = gather_rows(caches.kv[:, None], places)[:, 0]
    ended = batch.seq_lens[:rows, None] // rate
    most = (int(batch.context_lens[:rows].max()) + 1) // rate
    if selected is None or most <= selected.shape[1]:
        entry = torch.arange(most, device=q.device).expand(rows, -1)
        seen = entry < ended
    else:
        entry, seen = selected, selected >= 0
    table = caches.entry_pages.page_table[:rows]
    found = gather_entries(caches.entries, table, entry, seen, caches.grid)
    keys = torch.cat([recent, found], dim=1)[:, None]
    return attend_once(q, keys, keys, torch.cat([places.valid, seen], dim=1), softmax)


def _prefill(
    q: Float[Tensor, "queries heads dim"],
    caches: _Caches,
    row: Prefill,
    softmax: Softmax,
    selected: Int32[Tensor, "queries top_k"] | None,
) -> Float[Tensor, "queries heads dim"]:
    size, seq_len = caches.kv.shape[1], row.context + len(q)
    first = caches.reach.first_visible(row.context)
    begin = first // size * size
    blocks = caches.pages.page_table[row.row, : blocks_for(seq_len - begin, size)]
    recent = gather_row(caches.kv[:, None], blocks, slice(first - begin, seq_len - begin))[0]
    ended = seq_len // caches.grid.rate
    if selected is None or ended <= selected.shape[1]:
        return _to_all_entries(q, recent, first, ended, caches, row, softmax)
    return _to_selected(q, recent, first, selected, caches, row, softmax)


def _to_all_entries(
    q: Float[Tensor, "queries heads dim"],
    recent: Float[Tensor, "tokens dim"],
    first: int,
    ended: int,
    caches: _Caches,
    row: Prefill,
    softmax: Softmax,
) -> Float[Tensor, "queries heads dim"]:
    """A few queries at a time; `recent` begins with the token at `first`."""
    window, rate = caches.reach.window, caches.grid.rate
    assert window is not None
    entry = torch.arange(ended, device=q.device)
    table = caches.entry_pages.page_table[row.row : row.row + 1]
    every = torch.ones(1, ended, dtype=torch.bool, device=q.device)
    found = gather_entries(caches.entries, table, entry[None], every, caches.grid)[0]
    parts: list[Tensor] = []
    lot = max(1, min(window, _MOST_NUMBERS // (q.shape[1] * (2 * window + ended))))
    for start in range(row.context, row.context + len(q), lot):
        stop = min(start + lot, row.context + len(q))
        query = torch.arange(start, stop, device=q.device)[:, None]
        token = torch.arange(caches.reach.first_visible(start), stop, device=q.device)
        mask = torch.cat(
            [(token <= query) & (token > query - window), entry < (query + 1) // rate], dim=1
        )
        keys = torch.cat([recent[caches.reach.first_visible(start) - first : stop - first], found])
        part = q[start - row.context : stop - row.context].transpose(0, 1)
        parts.append(masked_attention(part, keys[None], keys[None], mask, softmax))
    return torch.cat(parts, dim=1).transpose(0, 1)


def _to_selected(
    q: Float[Tensor, "queries heads dim"],
    recent: Float[Tensor, "tokens dim"],
    first: int,
    selected: Int32[Tensor, "queries top_k"],
    caches: _Caches,
    row: Prefill,
    softmax: Softmax,
) -> Float[Tensor, "queries heads dim"]:
    """A few queries at a time, each with its own keys."""
    window = caches.reach.window
    assert window is not None
    parts: list[Tensor] = []
    table = caches.entry_pages.page_table[row.row : row.row + 1]
    before = torch.arange(1 - window, 1, device=q.device)
    lot = max(1, _MOST_NUMBERS // ((window + selected.shape[1]) * q.shape[2]))
    for start in range(0, len(q), lot):
        entry = selected[start : start + lot]
        query = torch.arange(start, start + len(entry), device=q.device) + row.context
        token = query[:, None] + before
        found = gather_entries(
            caches.entries, table.expand(len(entry), -1), entry, entry >= 0, caches.grid
        )
        keys = torch.cat([recent[(token - first).clamp(min=0)], found], dim=1)[:, None]
        mask = torch.cat([token >= 0, entry >= 0], dim=1)
        parts.append(attend_once(q[start : start + lot], keys, keys, mask, softmax))
    return torch.cat(parts)
