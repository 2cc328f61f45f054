"""Each token's own input and the last ones before it, for convolutions that mix channels."""

from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import recent_inputs as reference


def _fake(x: Tensor, state: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape[0], state.shape[1] + 1, x.shape[1])


@torch_op(_fake, writes=["state"])
def recent_inputs(
    x: Shaped[Tensor, "tokens channels"],
    state: Shaped[Tensor, "pages history channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Shaped[Tensor, "tokens history+1 channels"]:
    """`x[t - history], ..., x[t]` for every token t, zeros where that is before the sequence.

    A state is the last `history` inputs of a sequence, oldest first; it is read and left in
    pages as in `causal_conv1d`.
    """
    return reference.recent_inputs(x, state, pages, initial_pages, batch)
