"""select_entries in plain torch."""

import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.entries import EntryGrid, gather_entries
from hybridrt.kernels.reference.select_tokens import (
    MOST_SCORES,
    everything,
    highest,
    scores_of,
)


def select_entries(
    q_index: Float[Tensor, "tokens heads dim"],
    weights: Float32[Tensor, "tokens heads"],
    entries: Float[Tensor, "blocks entries_per_block dim"],
    pages: TokenPages,
    grid: EntryGrid,
    batch: Rows,
    top_k: int,
) -> Int32[Tensor, "tokens top_k"]:
    """See `hybridrt.kernels.select_entries`."""
    out = torch.full((len(q_index), top_k), -1, dtype=torch.int32, device=q_index.device)
    n = batch.num_decodes
    if n:
        most = (int(batch.context_lens[:n].max()) + 1) // grid.rate
        entry = torch.arange(most, device=out.device)
        seen = entry < batch.seq_lens[:n, None] // grid.rate
        if most <= top_k:
            out[:n, :most] = everything(seen)
        else:
            keys = gather_entries(entries, pages.page_table[:n], entry.expand(n, -1), seen, grid)
            out[:n] = highest(scores_of(q_index[:n], weights[:n], keys), seen, top_k)
    for row in batch.prefills:
        tokens = slice(row.start, row.stop)
        _select_row(out[tokens], q_index[tokens], weights[tokens], entries, pages, grid, row)
    return out


def _select_row(
    out: Int32[Tensor, "queries top_k"],
    q_index: Float[Tensor, "queries heads dim"],
    weights: Float32[Tensor, "queries heads"],
    entries: Float[Tensor, "blocks entries_per_block dim"],
    pages: TokenPages,
    grid: EntryGrid,
    row: Prefill,
) -> None:
    (queries, top_k), heads = out.shape, q_index.shape[1]
    most = (row.context + queries) // grid.rate
    entry = torch.arange(most, device=out.device)
    ended = torch.arange(row.context + 1, row.context + queries + 1, device=out.device) // grid.rate
    seen = entry < ended[:, None]
    if most <= top_k:
        out[:, :most] = everything(seen)
        return
    table = pages.page_table[row.row : row.row + 1]
    keys = gather_entries(entries, table, entry[None], seen[-1:], grid)
    lot = max(1, MOST_SCORES // (heads * most))
    for start in range(0, queries, lot):
        part = slice(start, start + lot)
        out[part] = highest(scores_of(q_index[part], weights[part], keys), seen[part], top_k)
