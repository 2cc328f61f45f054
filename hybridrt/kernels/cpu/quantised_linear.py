"""quantised_linear in numba: weights are widened in registers, and read once for 8 tokens."""

from collections.abc import Callable
from functools import cache
from typing import Any, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import BFloat16, UInt8
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.cpu.bfloat16 import halves, narrow, octets, singles, widen
from hybridrt.kernels.cpu.dot import LANES, ROWS, VECTORS, make_dot
from hybridrt.kernels.cpu.jit import kernel, parallel_kernel

MOST_TOKENS = 8  # beyond it the weights are widened first, and oneDNN multiplies
MOST_VECTORS = VECTORS[-1]
OUTPUTS = 64  # a thread's share


def quantised_linear(
    x: BFloat16[Tensor, "tokens inputs"],
    values: UInt8[Tensor, "blocks groups together group_bytes"],
    scales: BFloat16[Tensor, "blocks groups together"],
    bits: int,
    outputs: int,
) -> BFloat16[Tensor, "tokens outputs"]:
    """See `hybridrt.kernels.quantised_linear`, of which this is a part: without the bias."""
    (tokens, inputs), groups = x.shape, scales.shape[1]
    of_weight = (values.data_ptr(), scales.data_ptr())
    if tokens > MOST_TOKENS:
        weight = torch.empty(outputs, inputs, dtype=x.dtype)
        _WIDEN[bits](*of_weight, weight.data_ptr(), outputs, inputs, groups)
        return F.linear(x, weight)
    x, out = x.contiguous(), torch.empty(tokens, outputs, dtype=x.dtype)
    for first in range(0, tokens, MOST_VECTORS):
        given = x[first : first + MOST_VECTORS]
        count = next(n for n in VECTORS if n >= len(given))
        # torch's memory begins at a line of the processor's cache, so that no load has two.
        packed = torch.empty(inputs * count)
        _pack(given.data_ptr(), packed.data_ptr(), len(given), inputs, count)
        _multiplier(bits, inputs // groups, count)(
            *(*of_weight, packed.data_ptr(), out[first:].data_ptr()),
            *(len(given), outputs, groups),
        )
    return out


@cache
def _multiplier(bits: int, group: int, count: int) -> Callable[..., None]:
    """Multiplies all weights with `count` packed vectors, of which the first ones count."""
    dot, group_bytes = make_dot(bits, group, count), group * bits // 8

    @parallel_kernel
    @no_type_check
    def multiply(values, scales, vectors, out, tokens, outputs, groups):
        # pragma: no cover  (compiled)
        for share in numba.prange((outputs + OUTPUTS - 1) // OUTPUTS):
            sums = np.empty(ROWS * count, np.float32)
            for row in range(share * OUTPUTS, min(outputs, (share + 1) * OUTPUTS), ROWS):
                own, scale = values + row * groups * group_bytes, scales + 2 * row * groups
                dot(own, scale, vectors, sums.ctypes.data, groups)
                for i in range(min(ROWS, outputs - row)):
                    for t in range(tokens):
                        result = halves(out + 2 * (t * outputs + row + i), 1)
                        result[0] = narrow(sums[i * count + t])

    return multiply


@kernel
@no_type_check
def _pack(x, packed, tokens, inputs, count):  # pragma: no cover  (compiled, as all below)
    """`[tokens, inputs]` as `hybridrt.kernels.cpu.dot` has them, with zeros in those too many."""
    result = singles(packed, inputs * count)
    for block in range(inputs // LANES):
        for t in range(count):
            place = (block * count + t) * LANES
            if t >= tokens:
                for i in range(LANES):
                    result[place + i] = 0
                continue
            given = halves(x + 2 * (t * inputs + block * LANES), LANES)
            for i in range(LANES):
                result[place + i] = widen(given[i])


@parallel_kernel
@no_type_check
def _widen_8(values, scales, weight, outputs, inputs, groups):  # pragma: no cover
    for row in numba.prange(outputs):
        for g in range(groups):
            place = (row // ROWS * groups + g) * ROWS + row % ROWS
            scale = widen(halves(scales + 2 * place, 1)[0])
            given = octets(values + 128 * place, 128)
            result = halves(weight + 2 * (row * inputs + g * 128), 128)
            for i in range(128):
                result[i] = narrow(np.float32(np.int8(given[i])) * scale)


@parallel_kernel
@no_type_check
def _widen_4(values, scales, weight, outputs, inputs, groups):  # pragma: no cover
    for row in numba.prange(outputs):
        for g in range(groups):
            place = (row // ROWS * groups + g) * ROWS + row % ROWS
            scale = widen(halves(scales + 2 * place, 1)[0])
            given = octets(values + 16 * place, 16)
            result = halves(weight + 2 * (row * inputs + g * 32), 32)
            for i in range(16):
                result[i] = narrow(np.float32(np.int32(given[i] & 15) - 8) * scale)
                result[16 + i] = narrow(np.float32(np.int32(given[i] >> 4) - 8) * scale)


_WIDEN: dict[int, Any] = {8: _widen_8, 4: _widen_4}
