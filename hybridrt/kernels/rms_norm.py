"""The root-mean-square norm, and that of a sum."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.backend import numba_takes, triton_takes
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
    if triton_takes(x):
        from hybridrt.kernels.triton import rms_norm as on_gpu

        return on_gpu.rms_norm(x, weight, eps, offset)
    return reference.rms_norm(x, weight, eps, offset)


def rms_norm_three(
    parts: Sequence[Float[Tensor, "tokens _"]],
    weights: Sequence[Float[Tensor, " _"]],
    eps: float,
) -> tuple[Float[Tensor, "tokens _"], ...]:
    """`rms_norm` of three parts of the same tokens, each by its weight."""
    if triton_takes(parts[0]):
        from hybridrt.kernels.triton import rms_norm as on_gpu

        return on_gpu.rms_norm_three(parts, weights, eps)
    both = zip(parts, weights, strict=True)
    return tuple(rms_norm(part, weight, eps) for part, weight in both)


def add_rms_norm(
    x: Float[Tensor, "*rows size"],
    y: Float[Tensor, "*rows size"],
    weight: Float[Tensor, " size"],
    eps: float,
    offset: float = 0.0,
    scale: float = 1.0,
) -> tuple[Float[Tensor, "*rows size"], Float[Tensor, "*rows size"]]:
    """`x + scale * y`, rounded as torch rounds it, and `rms_norm` of what it was rounded to.

    The same numbers as of the operations one behind the other.
    """
    if numba_takes(x, y, weight):
        from hybridrt.kernels.cpu import rms_norm as cpu

        return cpu.add_rms_norm(x, y, weight, eps, offset, scale)
    if triton_takes(x):
        from hybridrt.kernels.triton import rms_norm as on_gpu

        return on_gpu.add_rms_norm(x, y, weight, eps, offset, scale)
    return reference.add_rms_norm(x, y, weight, eps, offset, scale)
