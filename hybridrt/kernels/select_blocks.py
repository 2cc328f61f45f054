"""Picks blocks of cached tokens that sparse attention looks at, by one key of each."""

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import select_blocks as reference


def _fake(
    q_index: Tensor, k_index: Tensor, pages: TokenPages, batch: Rows, size: int, top_k: int
) -> Tensor:
    return q_index.new_empty(q_index.shape[0], size * top_k + size - 1, dtype=torch.int32)


@torch_op(_fake, reads=["k_index"])
def select_blocks(
    q_index: Float[Tensor, "tokens heads dim"],
    k_index: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    batch: Rows,
    size: int,
    top_k: int,
) -> Int32[Tensor, "tokens width"]:
    """The positions of the tokens that each new token attends to.

    There are `width = top_k * size + size - 1` places for them. Tokens `size * i` to `size * i +
    size - 1` of a sequence are its block i, whose key the cache has in the place of the last of
    them. For token t block i has the score `sum_h relu(q_index[t, h] . key[i])`, in float32.
    Picked are all tokens of the `top_k` blocks that score highest, of those that end at t or
    before, and the tokens behind the last such block up to t. Of equal scores the earlier block
    is picked. Positions ascend; where there are fewer, and for padding tokens, places hold -1. A
    token that sees no more than `width` tokens so attends to all.
    """
    return reference.select_blocks(q_index, k_index, pages, batch, size, top_k)
