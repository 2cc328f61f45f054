"""select_tokens in plain torch."""

import torch
from jaxtyping import Bool, Float, Float32, Int32
from torch import Tensor

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.gather import blocks_for, decode_places, gather_row, gather_rows

MOST_SCORES = 2**24  # held at once: 64 MiB


def select_tokens(
    q_index: Float[Tensor, "tokens heads dim"],
    weights: Float32[Tensor, "tokens heads"],
    k_index: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    batch: Rows,
    top_k: int,
) -> Int32[Tensor, "tokens top_k"]:
    """See `hybridrt.kernels.select_tokens`."""
    out = torch.full((len(q_index), top_k), -1, dtype=torch.int32, device=q_index.device)
    n = batch.num_decodes
    if n:
        places = decode_places(pages, batch, k_index.shape[1])
        if places.count <= top_k:
            out[:n, : places.count] = everything(places.valid)
        else:
            keys = gather_rows(k_index[:, None], places)[:, 0]
            scores = scores_of(q_index[:n], weights[:n], keys)
            out[:n] = highest(scores, places.valid, top_k)
    for row in batch.prefills:
        _select_row(out[row.start : row.stop], q_index, weights, k_index, pages, row)
    return out


def _select_row(
    out: Int32[Tensor, "queries top_k"],
    q_index: Float[Tensor, "tokens heads dim"],
    weights: Float32[Tensor, "tokens heads"],
    k_index: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    row: Prefill,
) -> None:
    top_k, seq_len = out.shape[1], row.context + row.stop - row.start
    position = torch.arange(seq_len, device=out.device)
    seen = position <= position[row.context :, None]
    if seq_len <= top_k:
        out[:, :seq_len] = everything(seen)
        return
    blocks = pages.page_table[row.row, : blocks_for(seq_len, k_index.shape[1])]
    keys = gather_row(k_index[:, None], blocks, slice(seq_len))
    lot = max(1, MOST_SCORES // (q_index.shape[1] * seq_len))
    for start in range(row.start, row.stop, lot):
        tokens = slice(start, min(start + lot, row.stop))
        rows = slice(tokens.start - row.start, tokens.stop - row.start)
        out[rows] = highest(scores_of(q_index[tokens], weights[tokens], keys), seen[rows], top_k)


def scores_of(
    q_index: Float[Tensor, "queries heads dim"],
    weights: Float32[Tensor, "queries heads"],
    keys: Float[Tensor, "lots count dim"],
) -> Float32[Tensor, "queries count"]:
    """Of keys of each query's own, or of one lot of keys for all."""
    scores = torch.matmul(q_index.float(), keys.float().transpose(1, 2)).relu_()
    return torch.matmul(weights[:, None], scores)[:, 0]


def everything(seen: Bool[Tensor, "queries count"]) -> Int32[Tensor, "queries count"]:
    """All positions that are seen, which are the first ones, and -1 behind them."""
    positions = torch.arange(seen.shape[1], dtype=torch.int32, device=seen.device)
    return positions.expand_as(seen).masked_fill(~seen, -1)


def highest(
    scores: Float32[Tensor, "queries count"], seen: Bool[Tensor, "queries count"], top_k: int
) -> Int32[Tensor, "queries top_k"]:
    """The positions of the highest scores of those seen; of equal ones the earlier."""
    count = scores.shape[1]
    scores = scores.masked_fill(~seen, -torch.inf)
    least = scores.topk(top_k, dim=-1).values[:, -1:]
    above, equal = scores > least, scores == least
    spare = top_k - above.sum(-1, keepdim=True)
    chosen = (above | (equal & (equal.cumsum(-1) <= spare))) & seen
    # Numbers that fall with the position, and zero for what isn't chosen.
    order = chosen * torch.arange(count, 0, -1, device=scores.device)
    found = count - order.topk(top_k, dim=-1).values
    return found.masked_fill(found == count, -1).to(torch.int32)
