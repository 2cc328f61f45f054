"""The state-space dual scan of Mamba-2."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.op import like_first, torch_op
from hybridrt.kernels.reference import ssd as reference


@torch_op(like_first, writes=["ssm_state"])
def ssd(
    x: Float[Tensor, "tokens heads head_dim"],
    dt: Float[Tensor, "tokens heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    chunk_size: int,
    backend: StateBackend = "reference",
) -> Float[Tensor, "tokens heads head_dim"]:
    """`h = exp(dt A) h + dt x B^T`, `y = h C + D x` along each sequence, head by head.

    Mamba-2, arXiv 2405.21060, section 6: the recurrence inside a chunk of `chunk_size`
    tokens is a product of matrices, and chunks are joined by their states. The result
    doesn't depend on `chunk_size` but for rounding. Head h reads group
    `h // (heads // groups)` of B and C. `dt` is positive (bias, softplus and limits are
    taken), A negative. Computed in float32; y has the dtype of x. States are read and
    left in pages as in `selective_scan`.
    """
    args = (x, dt, A, B, C, D, ssm_state, pages, initial_pages, batch, chunk_size)
    if backend == "numba":
        from hybridrt.kernels.cpu import ssd as cpu

        return cpu.ssd(*args)
    if backend == "mamba_ssm" and x.dtype != torch.float32:  # which that package rounds to tf32
        from hybridrt.kernels.cuda import ssd as cuda

        return cuda.ssd(*args)
    if backend in ("triton", "mamba_ssm"):
        from hybridrt.kernels.triton import ssd as on_gpu

        return on_gpu.ssd(*args)
    return reference.ssd(*args)
