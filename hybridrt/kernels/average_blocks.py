"""Writes tokens' index keys, and averages those of each block of tokens that is complete."""

from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.op import like_first, torch_op
from hybridrt.kernels.reference import average_blocks as reference


@torch_op(like_first, writes=["cache"])
def average_blocks(
    keys: Float[Tensor, "tokens dim"],
    cache: Float[Tensor, "blocks block_size dim"],
    pages: TokenPages,
    batch: Rows,
    size: int,
) -> Float[Tensor, "tokens dim"]:
    """Writes `keys[t]` to the slot of every new token t, in place, as `write_pages`.

    Tokens `size * i` to `size * i + size - 1` of a sequence are its block i. For the token that
    ends a block the result is the mean of the keys that the cache holds of the block's tokens,
    taken in float32; for any other it is the token's own key.
    """
    return reference.average_blocks(keys, cache, pages, batch, size)
