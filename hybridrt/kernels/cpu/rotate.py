"""rotate in numba, of bfloat16."""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import BFloat16, Float32, Int64
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, integers, narrow, singles, widen
from hybridrt.kernels.cpu.jit import inner_fast
from hybridrt.kernels.cpu.share import parallel_kernel, share_each, threads_for
from hybridrt.kernels.cpu.vector_math import fma, mul, splat, sub
from hybridrt.kernels.cpu.vectors import LANES, load_up_to, pointer, prefetch, store_up_to


def rotate(
    x: BFloat16[Tensor, "tokens heads head_dim"],
    table: Float32[Tensor, "positions 2 half"],
    positions: Int64[Tensor, " tokens"],
    interleaved: bool,
    back: bool,
) -> BFloat16[Tensor, "tokens heads head_dim"]:
    """See `hybridrt.kernels.rotate`."""
    x = x if x.stride(2) == 1 else x.contiguous()
    # Held while their addresses are in use.
    table, positions = table.float().contiguous(), positions.long().contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    _rotate_all(
        threads_for(x.numel()),
        x.data_ptr(),
        x.stride(0),
        x.stride(1),
        table.data_ptr(),
        positions.data_ptr(),
        out.data_ptr(),
        *x.shape,
        table.shape[2],
        interleaved,
        -1.0 if back else 1.0,
    )
    return out


@inner_fast
@no_type_check
def _rotate(  # pragma: no cover  (compiled)
    t, x, stride, head_stride, table, positions, out, heads, size, half, interleaved, sign
):
    x, out, position = x + 2 * t * stride, out + 2 * t * heads * size, integers(positions, t + 1)[t]
    angles = singles(table + 8 * position * half, 2 * half)
    of_angles, way = pointer(angles), splat(np.float32(sign))
    for head in range(heads):
        given = halves(x + 2 * head * head_stride, size)
        result = halves(out + 2 * head * size, size)
        if interleaved:
            for j in range(half):
                cos, sin = angles[j], angles[half + j] * np.float32(sign)
                a, b = widen(given[2 * j]), widen(given[2 * j + 1])
                result[2 * j] = narrow(a * cos - b * sin)
                result[2 * j + 1] = narrow(b * cos + a * sin)
        else:
            of_given, of_result = pointer(given), pointer(result)
            coming = pointer(halves(x + 2 * (stride + head * head_stride), size))
            for j in range(0, half, LANES):
                left = half - j
                cos = load_up_to(of_angles, j, left)
                sin = mul(load_up_to(of_angles, half + j, left), way)
                a, b = load_up_to(of_given, j, left), load_up_to(of_given, half + j, left)
                store_up_to(sub(mul(a, cos), mul(b, sin)), of_result, j, left)
                store_up_to(fma(b, cos, mul(a, sin)), of_result, half + j, left)
                prefetch(coming, j)  # of the next token
                prefetch(coming, half + j)
        for j in range(2 * half, size):
            result[j] = given[j]


@parallel_kernel
@no_type_check
def _rotate_all(  # pragma: no cover
    threads, x, stride, head_stride, table, positions, out, tokens, heads, size, half, interleaved,
    sign
):  # fmt: skip
    given = x, stride, head_stride, table, positions, out, heads, size, half, interleaved, sign
    share_each(_rotate, threads, tokens, given)
