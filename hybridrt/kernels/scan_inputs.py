"""The steps and the rates of Mamba's scans, of what a layer projects and what it has learned."""

from math import inf

from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.kernels.backend import has_numba, numba_takes, triton_takes
from hybridrt.kernels.reference import scan_inputs as reference


def scan_inputs(
    dt: Float[Tensor, "tokens channels"],
    dt_bias: Float[Tensor, " channels"] | None,
    A_log: Float32[Tensor, " channels *state_size"],
    limits: tuple[float, float] = (0.0, inf),
) -> tuple[Float32[Tensor, "tokens channels"], Float32[Tensor, " channels *state_size"]]:
    """`softplus(dt + dt_bias)` within its limits, and `A = -exp(A_log)`, both in float32.

    As `hybridrt.kernels.selective_scan` (Mamba, arXiv 2312.00752), with channels of its own rates,
    and `hybridrt.kernels.ssd` (Mamba-2, arXiv 2405.21060), with heads, take them.
    """
    if numba_takes(dt) and has_numba(A_log) and A_log.is_contiguous():
        from hybridrt.kernels.cpu import scan_inputs as cpu

        return cpu.scan_inputs(dt, dt_bias, A_log, limits)
    if triton_takes(dt):
        from hybridrt.kernels.triton import scan_inputs as on_gpu

        return on_gpu.scan_inputs(dt, dt_bias, A_log, limits)
    return reference.scan_inputs(dt, dt_bias, A_log, limits)
