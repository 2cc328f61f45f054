"""Makes one entry of the tokens of a chunk, at the step in which it ends."""

from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import pool_chunks as reference


def _fake(inputs: Tensor, bias: Tensor, pages: TokenPages, _: Rows, overlaps: bool) -> Tensor:
    width = bias.shape[1]
    return inputs.new_empty(pages.slots.shape[0], width // 2 if overlaps else width)


@torch_op(_fake, reads=["inputs"])
def pool_chunks(
    inputs: Float[Tensor, "blocks block_size twice_width"],
    bias: Float32[Tensor, "rate width"],
    pages: TokenPages,
    batch: Rows,
    overlaps: bool,
) -> Float[Tensor, "tokens dim"]:
    """`sum_j softmax_j(gate_j + bias_j) * value_j` over the chunk that ends with each new token.

    Channel by channel, in float32, over the `rate` tokens from a multiple of `rate` on (the
    compressors of DeepSeek-V4). Tokens that end no chunk get zeros. `inputs` has each token's
    values and then its gates; those of the new tokens have been written before.

    With `overlaps` a chunk's entry is of the chunk before too, `dim` being half the width: of
    that one it takes the first half of values and gates, of its own the second. The page table
    is that of a window of `2 * rate` tokens then, else of chunks of `rate`.
    """
    return reference.pool_chunks(inputs, bias, pages, batch, overlaps)
