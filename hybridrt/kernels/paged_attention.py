"""Causal attention over a paged cache, for decode rows and prefill chunks together."""

from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.reference import paged_attention as reference


def paged_attention(
    q: Float[Tensor, "tokens heads head_dim_k"],
    kv: Float[Tensor, "blocks kv_heads block_size content"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
) -> Float[Tensor, "tokens heads head_dim_v"]:
    """Attends from every new token to all tokens of its sequence up to itself.

    Keys come before values in the last axis of `kv`, which may have any strides.
    Query head `h` reads key head `h // (heads // kv_heads)` (grouped-query attention,
    arXiv 2305.13245). The new tokens' keys and values have been written before.
    Nothing behind the end of a sequence is read into a result, whatever it holds.
    """
    return reference.paged_attention(q, kv, pages, batch, scale)
