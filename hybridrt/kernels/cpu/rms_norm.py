"""rms_norm in numba, of bfloat16: one pass over a row for its length, one for the result."""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, narrow, widen
from hybridrt.kernels.cpu.jit import FEW, inner_fast, kernel, parallel_kernel


def rms_norm(
    x: BFloat16[Tensor, "*rows size"],
    weight: BFloat16[Tensor, " size"],
    eps: float,
    offset: float,
) -> BFloat16[Tensor, "*rows size"]:
    """See `hybridrt.kernels.rms_norm`."""
    if x.dim() > 3 or x.stride(-1) != 1:
        x = x.contiguous().flatten(0, -2)
    out = torch.empty(x.shape, dtype=x.dtype)
    size = x.shape[-1]
    outer = x.shape[0] if x.dim() > 1 else 1
    inner = x.shape[1] if x.dim() == 3 else 1
    strides = (x.stride(0) if x.dim() > 1 else 0, x.stride(1) if x.dim() == 3 else 0)
    run = _norm_few if x.numel() <= FEW else _norm_many
    run(x.data_ptr(), *strides, weight.data_ptr(), out.data_ptr(), outer, inner, size, eps, offset)
    return out


@inner_fast
@no_type_check
def _norm(  # pragma: no cover  (compiled)
    x, stride, inner_stride, weight, out, first, last, inner, size, eps, offset
):
    w = halves(weight, size)
    for row in range(first * inner, last * inner):
        place = row // inner * stride + row % inner * inner_stride
        given = halves(x + 2 * place, size)
        result = halves(out + 2 * row * size, size)
        total = np.float32(0)
        for i in range(size):
            v = widen(given[i])
            total += v * v
        scale = np.float32(1) / np.sqrt(total / np.float32(size) + np.float32(eps))
        for i in range(size):
            result[i] = narrow(widen(given[i]) * scale * (widen(w[i]) + np.float32(offset)))


@kernel
@no_type_check
def _norm_few(  # pragma: no cover
    x, stride, inner_stride, weight, out, outer, inner, size, eps, offset
):
    _norm(x, stride, inner_stride, weight, out, 0, outer, inner, size, eps, offset)


@parallel_kernel
@no_type_check
def _norm_many(  # pragma: no cover
    x, stride, inner_stride, weight, out, outer, inner, size, eps, offset
):
    for row in numba.prange(outer):
        _norm(x, stride, inner_stride, weight, out, row, row + 1, inner, size, eps, offset)
