"""The sum of two tensors."""

import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.backend import numba_takes, triton_takes


def add(
    x: Float[Tensor, "*batch size"], y: Float[Tensor, "*batch size"], scale: float = 1.0
) -> Float[Tensor, "*batch size"]:
    """`x + scale * y`, of the same shape; the product is rounded first, as torch rounds it.

    On a GPU by a kernel of ours, as torch's neither start while those before them are at work nor
    let those behind them. On a CPU by ours too, whose call is shorter.
    """
    if x.shape == y.shape and numba_takes(x, y) and x.is_contiguous() and y.is_contiguous():
        from hybridrt.kernels.cpu import elementwise

        out = torch.empty_like(x)
        elementwise.add(x, y, out, scale)
        return out
    if x.shape == y.shape and triton_takes(x):
        from hybridrt.kernels.triton.gated import add as on_gpu

        return on_gpu(x, y, scale)
    return x + y if scale == 1.0 else x + y * scale
