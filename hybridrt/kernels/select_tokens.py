"""Picks the cached tokens that sparse attention looks at."""

import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import select_tokens as reference


def _fake(
    q_index: Tensor, weights: Tensor, k_index: Tensor, pages: TokenPages, batch: Rows, top_k: int
) -> Tensor:
    return q_index.new_empty(q_index.shape[0], top_k, dtype=torch.int32)


@torch_op(_fake, reads=["k_index"])
def select_tokens(
    q_index: Float[Tensor, "tokens heads dim"],
    weights: Float32[Tensor, "tokens heads"],
    k_index: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    batch: Rows,
    top_k: int,
) -> Int32[Tensor, "tokens top_k"]:
    """The positions of the `top_k` tokens that each new token scores highest, up to itself.

    Token s has the score `sum_h weights[t, h] * relu(q_index[t, h] . k_index[s])` for token t
    (the lightning indexer of DeepSeek-V3.2, arXiv 2512.02556, section 2.1), in float32. Of equal
    scores the earlier position is picked, so that what is picked doesn't depend on what comes
    behind. Positions ascend; where fewer than `top_k` tokens are seen, and for padding tokens,
    the rest is -1.
    """
    return reference.select_tokens(q_index, weights, k_index, pages, batch, top_k)
