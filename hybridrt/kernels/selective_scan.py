"""The selective scan of Mamba-1."""

from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.op import like_first, torch_op
from hybridrt.kernels.reference import selective_scan as reference


@torch_op(like_first, writes=["ssm_state"])
def selective_scan(
    x: Float[Tensor, "tokens channels"],
    dt: Float[Tensor, "tokens channels"],
    A: Float[Tensor, "channels state_size"],
    B: Float[Tensor, "tokens state_size"],
    C: Float[Tensor, "tokens state_size"],
    D: Float[Tensor, " channels"],
    ssm_state: Float[Tensor, "pages channels state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    backend: StateBackend = "reference",
) -> Float[Tensor, "tokens channels"]:
    """`h = exp(dt A) h + dt B x`, `y = C . h + D x` along each sequence.

    Mamba, arXiv 2312.00752, algorithm 2, with the zero-order hold for A and the Euler
    step for B that its code uses. `dt` is positive (softplus is taken), A negative.
    Computed in float32; y has the dtype of x.

    Row i starts from the state in page `initial_pages[i]` of `ssm_state` (zeros where
    `has_initial_state` is false) and leaves its own, behind its last token, in `pages[i]`. A
    row that follows starts from what the row before it has left; see `Rows`. What stands in
    any other page is not changed.
    """
    args = (x, dt, A, B, C, D, ssm_state, pages, initial_pages, batch)
    if backend == "numba":
        from hybridrt.kernels.cpu import selective_scan as cpu

        return cpu.selective_scan(*args)
    if backend == "triton":
        from hybridrt.kernels.triton import selective_scan as on_gpu

        return on_gpu.selective_scan(*args)
    if backend == "mamba_ssm":
        from hybridrt.kernels.cuda import selective_scan as cuda

        return cuda.selective_scan(*args)
    return reference.selective_scan(*args)
