"""select_blocks in plain torch."""

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.reference.gather import gather_tokens
from hybridrt.kernels.reference.select_tokens import everything, highest

_MOST_SCORES = 2**24  # held at once: 64 MiB


def select_blocks(
    q_index: Float[Tensor, "tokens heads dim"],
    k_index: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    batch: Rows,
    size: int,
    top_k: int,
) -> Int32[Tensor, "tokens width"]:
    """See `hybridrt.kernels.select_blocks`."""
    width, device = top_k * size + size - 1, q_index.device
    out = torch.full((len(q_index), width), -1, dtype=torch.int32, device=device)
    n = batch.num_decodes
    if n:
        complete = (int(batch.context_lens[:n].max()) + 1) // size
        keys = _block_keys(k_index, pages.page_table[:n], complete, size)
        positions = batch.seq_lens[:n].long() - 1
        out[:n] = _select(q_index[:n], keys, positions, size, top_k)
    for row in batch.prefills:
        seq_len = row.context + row.stop - row.start
        table = pages.page_table[row.row : row.row + 1]
        keys = _block_keys(k_index, table, seq_len // size, size)
        positions = torch.arange(row.context, seq_len, device=device)
        lot = max(1, _MOST_SCORES // (q_index.shape[1] * max(1, keys.shape[1])))
        for start in range(row.start, row.stop, lot):
            tokens = slice(start, min(start + lot, row.stop))
            own = positions[tokens.start - row.start : tokens.stop - row.start]
            out[tokens] = _select(q_index[tokens], keys, own, size, top_k)
    return out


def _block_keys(
    k_index: Float[Tensor, "blocks block_size dim"],
    table: Int32[Tensor, "lots max_blocks"],
    count: int,
    size: int,
) -> Float[Tensor, "lots count dim"]:
    """The keys of the first `count` blocks of each sequence."""
    ends = torch.arange(1, count + 1, device=k_index.device) * size - 1
    return gather_tokens(k_index, table, ends.expand(len(table), -1))


def _select(
    q_index: Float[Tensor, "queries heads dim"],
    keys: Float[Tensor, "lots count dim"],
    positions: Int64[Tensor, " queries"],
    size: int,
    top_k: int,
) -> Int32[Tensor, "queries width"]:
    """Of keys of each query's own, or of one lot of keys for all."""
    complete = ((positions + 1) // size)[:, None]
    seen = torch.arange(keys.shape[1], device=keys.device) < complete
    if keys.shape[1] > top_k:
        scores = torch.matmul(q_index.float(), keys.float().transpose(1, 2)).relu_().sum(1)
        chosen = highest(scores, seen, top_k)
    else:
        chosen = everything(seen)
    offsets = torch.arange(size, device=keys.device)
    picked = (chosen[..., None] * size + offsets).masked_fill(chosen[..., None] < 0, -1).flatten(1)
    rest = complete * size + offsets[:-1]
    rest = rest.masked_fill(rest > positions[:, None], -1)
    none = picked.new_full((len(picked), top_k * size - picked.shape[1]), -1)
    return torch.cat([picked, none, rest], dim=-1).to(torch.int32)
