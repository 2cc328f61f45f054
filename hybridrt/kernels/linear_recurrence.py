"""The recurrence of a gated linear unit: one number a channel, and nothing between channels."""

from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.op import like_first, torch_op
from hybridrt.kernels.reference import linear_recurrence as reference


@torch_op(like_first, writes=["state"])
def linear_recurrence(
    update: Float32[Tensor, "tokens channels"],
    decay: Float32[Tensor, "tokens channels"],
    state: Float[Tensor, "pages channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    backend: StateBackend = "reference",
) -> Float32[Tensor, "tokens channels"]:
    """Every `h[t] = decay[t] h[t-1] + update[t]` along each sequence, channel by channel.

    As in RG-LRU, arXiv 2402.19427, equation 4. `decay` lies in 0 to 1. States are read and
    left in pages as in `selective_scan`.
    """
    args = (update, decay, state, pages, initial_pages, batch)
    if backend == "numba":
        from hybridrt.kernels.cpu import linear_recurrence as cpu

        return cpu.linear_recurrence(*args)
    return reference.linear_recurrence(*args)
