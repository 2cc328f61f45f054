"""average_blocks in plain torch."""

import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.reference.gather import gather_tokens
from hybridrt.kernels.reference.write_pages import write_pages


def average_blocks(
    keys: Float[Tensor, "tokens dim"],
    cache: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    batch: Rows,
    size: int,
) -> Float[Tensor, "tokens dim"]:
    """See `hybridrt.kernels.average_blocks`."""
    write_pages(keys, cache, pages.slots)
    out = keys.clone()
    # In the host's memory, so that no device is asked which tokens end a block.
    rows = torch.arange(batch.num_rows, device="cpu").repeat_interleave(batch.query_lens)
    behind = batch.context_lens + batch.query_lens - batch.query_lens.cumsum(0)
    positions = torch.arange(len(rows), device="cpu") + behind[rows]
    (ends,) = ((positions + 1) % size == 0).nonzero(as_tuple=True)
    if len(ends):
        tokens = positions[ends, None] + torch.arange(1 - size, 1, device="cpu")
        table = pages.page_table[rows[ends].to(keys.device)]
        block = gather_tokens(cache, table, tokens.to(keys.device))
        out[ends.to(keys.device)] = block.float().mean(1).to(out.dtype)
    return out
