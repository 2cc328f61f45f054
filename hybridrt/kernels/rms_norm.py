"""The root-mean-square norm."""

from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.backend import numba_takes
from hybridrt.kernels.reference import rms_norm as reference


def rms_norm(
    x: Float[Tensor, "*rows size"],
    weight: Float[Tensor, " size"],
    eps: float,
    offset: float = 0.0,
) -> Float[Tensor, "*rows size"]:
    """`(weight + offset) * x / sqrt(mean(x^2) + eps)` over the last axis (arXiv 1910.07467).

    Squares are summed in float32. The result has the weight's dtype.
    """
    if numba_takes(x, weight):
        from hybridrt.kernels.cpu import rms_norm as cpu

        return cpu.rms_norm(x, weight, eps, offset)
    return reference.rms_norm(x, weight, eps, offset)
