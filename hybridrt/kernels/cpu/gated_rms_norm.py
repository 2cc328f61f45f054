"""gated_rms_norm in numba, of bfloat16."""

from typing import Literal, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, narrow, widen
from hybridrt.kernels.cpu.gated import sigmoid
from hybridrt.kernels.cpu.gated import silu as silu_of
from hybridrt.kernels.cpu.jit import FEW, inner_fast, kernel, parallel_kernel


def gated_rms_norm(
    x: BFloat16[Tensor, "*rows size"],
    z: BFloat16[Tensor, "*rows size"],
    weight: BFloat16[Tensor, " size"],
    eps: float,
    num_groups: int,
    norm_before_gate: bool,
    gate: Literal["silu", "sigmoid"],
) -> BFloat16[Tensor, "*rows size"]:
    """See `hybridrt.kernels.gated_rms_norm`."""
    if x.stride(-1) != 1 or z.stride(-1) != 1:
        x, z = x.contiguous(), z.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    size = x.shape[-1] // num_groups
    if x.dim() == 3:  # heads, each normed as one group
        assert num_groups == 1, num_groups
        strides, groups = (*x.stride()[:2], *z.stride()[:2]), x.shape[1]
    else:
        strides, groups = (x.stride(0), size, z.stride(0), size), num_groups
    run = _norm_few if x.numel() <= FEW else _norm_many
    run(
        *(x.data_ptr(), *strides[:2], z.data_ptr(), *strides[2:]),
        *(weight.data_ptr(), size if num_groups > 1 else 0, out.data_ptr()),
        *(eps, norm_before_gate, gate == "silu", len(x), groups, size),
    )
    return out


@inner_fast
@no_type_check
def _norm(  # pragma: no cover  (compiled, as all below)
    t, x, x_stride, x_group, z, z_stride, z_group, weight, w_group, out, eps, before, silu, *shape
):
    _, groups, size = shape
    y, gating, one = np.empty(size, np.float32), np.empty(size, np.float32), np.float32(1)
    for g in range(groups):
        given = halves(x + 2 * (t * x_stride + g * x_group), size)
        gate = halves(z + 2 * (t * z_stride + g * z_group), size)
        result = halves(out + 2 * (t * groups + g) * size, size)
        w = halves(weight + 2 * g * w_group, size)
        for i in range(size):
            v = widen(gate[i])
            gating[i] = silu_of(v) if silu else sigmoid(v)
        total = np.float32(0)
        for i in range(size):
            v = widen(given[i]) * (one if before else gating[i])
            total += v * v
            y[i] = v
        scale = one / np.sqrt(total / np.float32(size) + np.float32(eps))
        for i in range(size):
            v = y[i] * scale * widen(w[i])
            result[i] = narrow(v * (gating[i] if before else one))


@kernel
@no_type_check
def _norm_few(*args):  # pragma: no cover
    for t in range(args[-3]):
        _norm(t, *args)


@parallel_kernel
@no_type_check
def _norm_many(*args):  # pragma: no cover
    for t in numba.prange(args[-3]):
        _norm(t, *args)
