"""Attention over some of the cached keys and values: those that were selected for each token."""

from jaxtyping import Float, Float32, Int32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import sparse_attention as reference


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return q.new_empty(*q.shape[:2], v.shape[-1])


@torch_op(_fake, reads=["k", "v", "k_scale", "v_scale"])
def sparse_attention(
    q: Float[Tensor, "tokens heads head_dim_k"],
    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
    selected: Int32[Tensor, "tokens groups width"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    k_scale: Float32[Tensor, "..."] | None = None,
    v_scale: Float32[Tensor, "..."] | None = None,
) -> Float[Tensor, "tokens heads head_dim_v"]:
    """`hybridrt.kernels.paged_attention`, of each token to the positions `selected` for it.

    Heads are in `groups` equal groups, each of which attends to positions of its own; `groups`
    divides `kv_heads`. A place that holds -1 holds no position; of each token and group some
    place does hold one, none is behind the token's own, and none stands there twice. Where a
    token sees no more than `width` tokens, all of them are selected. Padding tokens behind the
    last row get zeros.
    """
    return reference.sparse_attention(q, k, v, selected, pages, batch, scale, k_scale, v_scale)
