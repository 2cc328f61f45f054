"""gated_rms_norm in numba, of bfloat16."""

from typing import Literal, no_type_check

import numpy as np
import torch
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves
from hybridrt.kernels.cpu.gated import times_sigmoid
from hybridrt.kernels.cpu.jit import inline, inner_exact
from hybridrt.kernels.cpu.share import parallel_kernel, share_each, threads_for
from hybridrt.kernels.cpu.vector_math import fma, mul, splat, sum_of_lanes
from hybridrt.kernels.cpu.vectors import (
    LANES,
    aligned,
    load,
    load_up_to,
    pointer,
    prefetch,
    store,
    store_up_to,
)


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
    out, weight = torch.empty(x.shape, dtype=x.dtype), weight.contiguous()
    size = x.shape[-1] // num_groups
    if x.dim() == 3:  # heads, each normed as one group
        assert num_groups == 1, num_groups
        strides, groups = (*x.stride()[:2], *z.stride()[:2]), x.shape[1]
    else:
        strides, groups = (x.stride(0), size, z.stride(0), size), num_groups
    _norm_all(
        threads_for(x.numel()),
        *(x.data_ptr(), *strides[:2], z.data_ptr(), *strides[2:]),
        *(weight.data_ptr(), size if num_groups > 1 else 0, out.data_ptr()),
        *(eps, norm_before_gate, gate == "silu", len(x), groups, size),
    )
    return out


@inline
@no_type_check
def _gate(z, i, count, is_silu):  # pragma: no cover  (compiled, as all below)
    given = load_up_to(z, i, count)
    return times_sigmoid(given if is_silu else splat(np.float32(1)), given)


@inner_exact
@no_type_check
def _norm(
    t, x, x_stride, x_group, z, z_stride, z_group, weight, w_group, out, eps, before, silu, groups,
    size
):  # fmt: skip  # pragma: no cover
    values = aligned((size + LANES - 1) // LANES * LANES)
    for g in range(groups):
        of_values = pointer(values)  # here, as an array is given back after it was named last
        given = pointer(halves(x + 2 * (t * x_stride + g * x_group), size))
        gate = pointer(halves(z + 2 * (t * z_stride + g * z_group), size))
        result = pointer(halves(out + 2 * (t * groups + g) * size, size))
        w = pointer(halves(weight + 2 * g * w_group, size))
        squares = splat(np.float32(0))
        for i in range(0, size, LANES):
            value = load_up_to(given, i, size - i)
            if not before:
                value = mul(value, _gate(gate, i, size - i, silu))
            # The next token's: of two rows at once processors read too little ahead by themselves.
            prefetch(given, x_stride + i)
            prefetch(gate, z_stride + i)
            squares = fma(value, value, squares)
            store(value, of_values, i)
        mean = sum_of_lanes(squares) / np.float32(size)
        scale = splat(np.float32(1) / np.sqrt(mean + np.float32(eps)))
        for i in range(0, size, LANES):
            value = mul(mul(load(of_values, i), scale), load_up_to(w, i, size - i))
            if before:
                value = mul(value, _gate(gate, i, size - i, silu))
            store_up_to(value, result, i, size - i)


@parallel_kernel
@no_type_check
def _norm_all(
    threads, x, x_stride, x_group, z, z_stride, z_group, weight, w_group, out, eps, before, silu,
    rows, groups, size
):  # fmt: skip  # pragma: no cover
    given = (
        x, x_stride, x_group, z, z_stride, z_group, weight, w_group, out, eps, before, silu, groups,
        size
    )  # fmt: skip
    share_each(_norm, threads, rows, given)
