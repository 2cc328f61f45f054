"""Picks the entries that attention over compressed tokens looks at."""

import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import select_entries as reference
from hybridrt.kernels.reference.entries import EntryGrid


def _fake(
    q_index: Tensor,
    weights: Tensor,
    entries: Tensor,
    pages: TokenPages,
    grid: EntryGrid,
    batch: Rows,
    top_k: int,
) -> Tensor:
    return q_index.new_empty(q_index.shape[0], top_k, dtype=torch.int32)


@torch_op(_fake, reads=["entries"])
def select_entries(
    q_index: Float[Tensor, "tokens heads dim"],
    weights: Float32[Tensor, "tokens heads"],
    entries: Float[Tensor, "blocks entries_per_block dim"],
    pages: TokenPages,
    grid: EntryGrid,
    batch: Rows,
    top_k: int,
) -> Int32[Tensor, "tokens top_k"]:
    """The `top_k` entries that each new token scores highest, of those that have ended with it.

    Scores are those of `hybridrt.kernels.select_tokens`, with entries in place of tokens. Of
    equal ones the earlier entry is picked. Entries ascend; where fewer than `top_k` have ended,
    and for padding tokens, the rest is -1.
    """
    return reference.select_entries(q_index, weights, entries, pages, grid, batch, top_k)
