"""quantised_linear in numba: groups of weights are widened as they are read, and multiplied.

A group's sums are multiplied by its scales in float32. For a few tokens weights are widened in
registers; for more once for all of them, in the nearest cache.
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import BFloat16, UInt8
from torch import Tensor

from hybridrt.kernels.blocked_matrices import BLOCK
from hybridrt.kernels.cpu.bfloat16 import halves, narrow, singles, widen
from hybridrt.kernels.cpu.jit import inner, kernel, parallel_kernel
from hybridrt.kernels.cpu.packed_dot import MOST_VECTORS
from hybridrt.kernels.cpu.quantised_dot import TOO_MUCH, make_group_dot, make_group_widen

FEW = 2 * MOST_VECTORS  # tokens for which weights are widened again with every turn of them
TOKENS = 128  # at a time: their sums stay in the second cache
TOGETHER = 128  # inputs that are widened at once: 16 KiB of them

_dot_8, _dot_4, _dot_wide = make_group_dot(8), make_group_dot(4), make_group_dot(16)
_widen_8, _widen_4 = make_group_widen(8), make_group_widen(4)


def quantised_linear(
    x: BFloat16[Tensor, "tokens inputs"],
    values: UInt8[Tensor, "blocks groups group_bytes"],
    scales: BFloat16[Tensor, "blocks groups block"],
    bits: int,
    outputs: int,
) -> BFloat16[Tensor, "tokens outputs"]:
    """See `hybridrt.kernels.quantised_linear`, of which this is a part: without the bias."""
    (tokens, inputs), groups = x.shape, scales.shape[1]
    x, out = x.contiguous(), torch.empty(tokens, outputs, dtype=x.dtype)
    begins = torch.empty(tokens, groups, dtype=torch.float32)
    too_much = TOO_MUCH if bits == 4 else 0
    _begin(x.data_ptr(), begins.data_ptr(), tokens * groups, inputs // groups, too_much)
    of_weight = values.data_ptr(), scales.data_ptr()
    places = x.data_ptr(), *of_weight, begins.data_ptr(), out.data_ptr()
    if tokens:
        _multiply(*places, tokens, outputs, inputs, groups, bits)
    return out


@kernel
@no_type_check
def _begin(x, begins, count, group, too_much):  # pragma: no cover  (compiled, as all below)
    """What each group's sums begin with, so that what weights are `too_much` goes away."""
    found = singles(begins, count)
    for g in range(count):
        found[g] = 0
    for g in range(count if too_much else 0):
        given, total = halves(x + 2 * g * group, group), np.float32(0)
        for i in range(group):
            total += widen(given[i])
        found[g] = -np.float32(too_much) * total


@inner
@no_type_check
def _in_turns(bits, values, scales, some, x, begins, totals, tokens, inputs, groups):
    # pragma: no cover
    """Adds products of some of all `groups`, a few tokens at a time."""
    group, turns, first = inputs // groups, (tokens + MOST_VECTORS - 1) // MOST_VECTORS, 0
    for turn in range(turns):
        end = tokens * (turn + 1) // turns
        given, into, count = x + 2 * inputs * first, totals + 4 * BLOCK * first, end - first
        start, steps, step = begins + 4 * groups * first, 2 * inputs, 4 * groups
        if bits == 8:
            _dot_8(count, values, scales, some, group, given, steps, start, step, into)
        elif bits == 4:
            _dot_4(count, values, scales, some, group, given, steps, start, step, into)
        else:
            _dot_wide(count, values, scales, some, group, given, steps, start, step, into)
        first = end


@inner
@no_type_check
def _in_cache(bits, values, scales, block, x, begins, totals, tokens, inputs, groups):
    # pragma: no cover
    """The same with groups that are widened before."""
    group, wide = inputs // groups, block.ctypes.data
    together = TOGETHER // group
    for g in range(0, groups, together):
        some = min(together, groups - g)
        own = values + g * group * BLOCK * bits // 8
        if bits == 8:
            _widen_8(own, some * group, wide)
        else:
            _widen_4(own, some * group, wide)
        scale, given, start = scales + 2 * BLOCK * g, x + 2 * g * group, begins + 4 * g
        _in_turns(16, wide, scale, some, given, start, totals, tokens, inputs, groups)


@parallel_kernel
@no_type_check
def _multiply(x, values, scales, begins, out, tokens, outputs, inputs, groups, bits):
    # pragma: no cover
    for n in numba.prange((outputs + BLOCK - 1) // BLOCK):
        own = values + np.int64(n) * (inputs * BLOCK * bits // 8)
        scale = scales + np.int64(n) * (2 * BLOCK * groups)
        block = np.empty(TOGETHER // 2 * BLOCK if tokens > FEW else 0, np.uint32)
        totals = np.empty(min(tokens, TOKENS) * BLOCK, np.float32)
        lots = (tokens + TOKENS - 1) // TOKENS
        for lot in range(lots):
            first, end = tokens * lot // lots, tokens * (lot + 1) // lots
            given, begin, into = x + 2 * first * inputs, begins + 4 * first * groups, totals.ctypes
            totals[:] = 0
            if tokens > FEW:
                _in_cache(
                    bits, own, scale, block, given, begin, into.data, end - first, inputs, groups
                )
            else:
                _in_turns(
                    bits, own, scale, groups, given, begin, into.data, end - first, inputs, groups
                )
            size = min(BLOCK, outputs - n * BLOCK)
            for t in range(end - first):
                result = halves(out + 2 * ((first + t) * outputs + n * BLOCK), size)
                for i in range(size):
                    result[i] = narrow(totals[t * BLOCK + i])
