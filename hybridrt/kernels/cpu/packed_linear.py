"""The product of a weight in oneDNN's blocks with a few tokens, in numba.

oneDNN's own product reads it more slowly than memory allows on some processors.
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, narrow, widen
from hybridrt.kernels.cpu.jit import inner, kernel, parallel_kernel
from hybridrt.kernels.cpu.packed_dot import MOST_VECTORS, OUTPUTS, make_packed_dot

MOST_TOKENS = 16  # beyond it oneDNN is as fast
SMALL = 2**18  # weights: beyond it another thread is worth waking


def packed_linear(
    x: BFloat16[Tensor, "*batch inputs"],
    address: int,
    block_bytes: int,
    bias: BFloat16[Tensor, " outputs"] | None,
    outputs: int,
) -> BFloat16[Tensor, "*batch outputs"]:
    """`x W^T + b`, summed in float32, with the weight's blocks at an address."""
    *batch, inputs = x.shape
    x, out = x.contiguous(), torch.empty(*batch, outputs, dtype=x.dtype)
    tokens = x.numel() // inputs
    run = _multiply_small if outputs * inputs <= SMALL else _multiply
    at_bias = 0 if bias is None else bias.data_ptr()
    of_weight = (address, block_bytes, at_bias)
    run(x.data_ptr(), *of_weight, out.data_ptr(), tokens, outputs, inputs)
    return out


_dot_1, _dot_2, _dot_3, _dot_4, _dot_5, _dot_6 = (
    make_packed_dot(count + 1) for count in range(MOST_VECTORS)
)


@inner
@no_type_check
def _dot(count, block, vectors, vector_bytes, pairs, sums):
    # pragma: no cover  (compiled, as all below)
    if count == 1:
        _dot_1(block, vectors, vector_bytes, pairs, sums)
    elif count == 2:
        _dot_2(block, vectors, vector_bytes, pairs, sums)
    elif count == 3:
        _dot_3(block, vectors, vector_bytes, pairs, sums)
    elif count == 4:
        _dot_4(block, vectors, vector_bytes, pairs, sums)
    elif count == 5:
        _dot_5(block, vectors, vector_bytes, pairs, sums)
    else:
        _dot_6(block, vectors, vector_bytes, pairs, sums)


@inner
@no_type_check
def _multiply_block(n, x, weight, block_bytes, bias, out, tokens, outputs, inputs):
    # pragma: no cover
    sums = np.empty((MOST_VECTORS, OUTPUTS), np.float32)
    size = min(OUTPUTS, outputs - n * OUTPUTS)
    turns = (tokens + MOST_VECTORS - 1) // MOST_VECTORS
    first = 0
    for turn in range(turns):
        end = tokens * (turn + 1) // turns
        block, vectors = weight + n * block_bytes, x + 2 * first * inputs
        _dot(end - first, block, vectors, 2 * inputs, inputs // 2, sums.ctypes.data)
        for t in range(first, end):
            result = halves(out + 2 * (t * outputs + n * OUTPUTS), size)
            if bias:
                added = halves(bias + 2 * n * OUTPUTS, size)
                for i in range(size):
                    result[i] = narrow(sums[t - first, i] + widen(added[i]))
            else:
                for i in range(size):
                    result[i] = narrow(sums[t - first, i])
        first = end


@kernel
@no_type_check
def _multiply_small(
    x, weight, block_bytes, bias, out, tokens, outputs, inputs
):  # fmt: skip  # pragma: no cover
    for n in range((outputs + OUTPUTS - 1) // OUTPUTS):
        _multiply_block(n, x, weight, block_bytes, bias, out, tokens, outputs, inputs)


@parallel_kernel
@no_type_check
def _multiply(
    x, weight, block_bytes, bias, out, tokens, outputs, inputs
):  # fmt: skip  # pragma: no cover
    for n in numba.prange((outputs + OUTPUTS - 1) // OUTPUTS):
        _multiply_block(n, x, weight, block_bytes, bias, out, tokens, outputs, inputs)
