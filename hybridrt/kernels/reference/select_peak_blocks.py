"""select_peak_blocks in plain torch."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor
from torch.nn.functional import pad

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.reference.gather import blocks_for, decode_places, gather_row, gather_rows
from hybridrt.kernels.reference.select_tokens import everything, highest

_MOST_SCORES = 2**24  # held at once: 64 MiB


@dataclass(frozen=True, slots=True)
class _Choice:
    """How many blocks of which size are picked, so many of them for where they are."""

    size: int
    top_k: int
    local: int


def select_peak_blocks(
    q_index: Float[Tensor, "tokens heads dim"],
    k_index: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    batch: Rows,
    size: int,
    top_k: int,
    local: int,
) -> Int32[Tensor, "tokens heads width"]:
    """See `hybridrt.kernels.select_peak_blocks`."""
    tokens, heads, _ = q_index.shape
    choice, device = _Choice(size, top_k, local), q_index.device
    out = torch.full((tokens, heads, top_k * size), -1, dtype=torch.int32, device=device)
    n = batch.num_decodes
    if n:
        keys = gather_rows(k_index[:, None], decode_places(pages, batch, k_index.shape[1]))[:, 0]
        out[:n] = _select(q_index[:n], keys, batch.seq_lens[:n].long() - 1, choice)
    for row in batch.prefills:
        seq_len = row.context + row.stop - row.start
        blocks = pages.page_table[row.row, : blocks_for(seq_len, k_index.shape[1])]
        keys = gather_row(k_index[:, None], blocks, slice(seq_len))
        positions = torch.arange(row.context, seq_len, device=device)
        lot = max(1, _MOST_SCORES // (heads * seq_len))
        for start in range(row.start, row.stop, lot):
            part = slice(start, min(start + lot, row.stop))
            own = positions[part.start - row.start : part.stop - row.start]
            out[part] = _select(q_index[part], keys, own, choice)
    return out


def _select(
    q_index: Float[Tensor, "queries heads dim"],
    keys: Float[Tensor, "lots count dim"],
    positions: Int64[Tensor, " queries"],
    choice: _Choice,
) -> Int32[Tensor, "queries heads width"]:
    """Of keys of each query's own, or of one lot of keys for all."""
    size, heads, count = choice.size, q_index.shape[1], keys.shape[1]
    num_blocks = blocks_for(count, size)
    place, block = (torch.arange(length, device=keys.device) for length in (count, num_blocks))
    own = positions[:, None] // size
    seen = block <= own
    if num_blocks > choice.top_k:
        scores = torch.matmul(q_index.float(), keys.float().transpose(1, 2))
        scores = scores.masked_fill(place > positions[:, None, None], -torch.inf)
        padded = pad(scores, (0, num_blocks * size - count), value=-torch.inf)
        peaks = padded.unflatten(-1, (num_blocks, size)).amax(-1)
        peaks = peaks.masked_fill((seen & (block > own - choice.local))[:, None], torch.inf)
        of_heads = seen[:, None].expand_as(peaks).flatten(0, 1)
        chosen = highest(peaks.flatten(0, 1), of_heads, choice.top_k)
        chosen = chosen.unflatten(0, (-1, heads))
    else:
        chosen = everything(seen)[:, None].expand(-1, heads, -1)
    picked = chosen[..., None] * size + torch.arange(size, device=keys.device)
    hidden = (chosen[..., None] < 0) | (picked > positions[:, None, None, None])
    picked = picked.masked_fill(hidden, -1).flatten(2)
    return pad(picked, (0, choice.top_k * size - picked.shape[2]), value=-1).to(torch.int32)
