"""Reads the tokens of sequences out of their pages."""

import torch
from jaxtyping import Bool, Int32, Shaped
from torch import Tensor


def gather_row(
    cache: Shaped[Tensor, "heads blocks block_size dim"],
    blocks: Int32[Tensor, " row_blocks"],
    num_tokens: int,
) -> Shaped[Tensor, "heads num_tokens dim"]:
    """The first `num_tokens` tokens that stand in these kernel blocks."""
    return cache[:, blocks].flatten(1, 2)[:, :num_tokens]


def gather_rows(
    cache: Shaped[Tensor, "heads blocks block_size dim"],
    page_table: Int32[Tensor, "rows row_blocks"],
    valid: Bool[Tensor, "rows max_tokens"],
) -> Shaped[Tensor, "rows heads max_tokens dim"]:
    """Every row's tokens, with zeros where `valid` is false.

    Zeros, since whatever stands behind a sequence's end may be NaN, and 0 * NaN is NaN.
    """
    rows = cache[:, page_table].flatten(2, 3)[:, :, : valid.shape[1]]
    return rows.masked_fill_(~valid[None, :, :, None], 0).transpose(0, 1)


def valid_tokens(
    seq_lens: Int32[Tensor, " rows"], max_tokens: int
) -> Bool[Tensor, "rows max_tokens"]:
    """Which of `max_tokens` places lie within each sequence."""
    return torch.arange(max_tokens, device=seq_lens.device) < seq_lens[:, None]


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Kernel blocks that so many tokens reach into."""
    return -(-num_tokens // block_size)
