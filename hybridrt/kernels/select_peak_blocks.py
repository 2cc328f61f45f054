"""Picks blocks of cached tokens that sparse attention looks at, by the best key in each."""

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import select_peak_blocks as reference


def _fake(
    q_index: Tensor,
    k_index: Tensor,
    pages: TokenPages,
    batch: Rows,
    size: int,
    top_k: int,
    local: int,
) -> Tensor:
    return q_index.new_empty(*q_index.shape[:2], size * top_k, dtype=torch.int32)


@torch_op(_fake, reads=["k_index"])
def select_peak_blocks(
    q_index: Float[Tensor, "tokens heads dim"],
    k_index: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    batch: Rows,
    size: int,
    top_k: int,
    local: int,
) -> Int32[Tensor, "tokens heads width"]:
    """The positions of the tokens that each head of each new token attends to.

    There are `width = top_k * size` places for them. Tokens `size * i` to `size * i + size - 1`
    of a sequence are its block i. For head h of token t it has the score `max_s q_index[t, h] .
    k_index[s]`, in float32, over its tokens s up to t. Picked are the tokens up to t of the
    `top_k` blocks that score highest, t's own block and the `local - 1` before it coming first.
    Of equal scores the earlier block is picked. Positions ascend; where there are fewer, and for
    padding tokens, places hold -1.
    """
    return reference.select_peak_blocks(q_index, k_index, pages, batch, size, top_k, local)
