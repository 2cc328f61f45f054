"""Mamba-2's output norm, with its gate."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.backend import numba_takes, triton_takes
from hybridrt.kernels.reference import gated_rms_norm as reference


def gated_rms_norm(
    x: Float[Tensor, "*rows size"],
    z: Float[Tensor, "*rows size"],
    weight: Float[Tensor, " size"],
    eps: float,
    num_groups: int,
    norm_before_gate: bool,
    gate: Literal["silu", "sigmoid"],
) -> Float[Tensor, "*rows size"]:
    """`norm(x * gate(z))`, or `norm(x) * gate(z)` with `norm_before_gate`.

    The mean is taken over each of `num_groups` equal parts of the last axis
    (arXiv 2405.21060, section 7.3). Computed in float32; the result has the dtype of z.
    """
    args = (x, z, weight, eps, num_groups, norm_before_gate, gate)
    if numba_takes(x, z, weight) and 2 <= x.dim() <= 3:
        from hybridrt.kernels.cpu import gated_rms_norm as cpu

        return cpu.gated_rms_norm(*args)
    if triton_takes(x):
        from hybridrt.kernels.triton import gated_rms_norm as on_gpu

        return on_gpu.gated_rms_norm(*args)
    return reference.gated_rms_norm(*args)
