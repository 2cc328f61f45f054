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
from hybridrt.kernels.cpu.jit import (
    apart,
    calls,
    inner_exact,
    inner_fast,
    inner_sums,
    kernel,
    parallel_kernel,
)
from hybridrt.kernels.cpu.packed_linear import add_products
from hybridrt.kernels.cpu.pairs import BY_PAIRS
from hybridrt.kernels.cpu.quantised_dot import (
    AHEAD,
    MOST_VECTORS,
    TOO_MUCH,
    make_group_dot,
    make_group_widen,
)
from hybridrt.kernels.cpu.tile_registers import multiplies_tiles, release_tiles, take_tiles
from hybridrt.kernels.cpu.vector_math import fma, splat
from hybridrt.kernels.cpu.vectors import LANES, aligned, load, pointer, store

FEW = 2 * MOST_VECTORS  # tokens for which weights are widened again with every turn of them
FEWEST_BY_TILES = MOST_VECTORS + 1
TOKENS = 128  # at a time: their sums stay in the second cache
TOGETHER = 128  # inputs that are widened at once
WIDENED = TOGETHER // 2 * BLOCK  # pairs that they are, of all outputs: 16 KiB

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
    _begin(x.data_ptr(), begins.data_ptr(), tokens * groups, inputs // groups, bits)
    of_weight = values.data_ptr(), scales.data_ptr()
    places = x.data_ptr(), *of_weight, begins.data_ptr(), out.data_ptr()
    if tokens:
        _multiply(multiplies_tiles(), *places, tokens, outputs, inputs, groups, bits)
    return out


@inner_fast
@no_type_check
def sum_groups(x, begins, count, group, bits):  # pragma: no cover  (compiled, as all below)
    """What the sums of so many groups begin with, so that what weights are too much goes away."""
    found = singles(begins, count)
    for g in range(count):
        found[g] = 0
    for g in range(count if bits == 4 else 0):
        given, total = halves(x + 2 * g * group, group), np.float32(0)
        for i in range(group):
            total += widen(given[i])
        found[g] = -np.float32(TOO_MUCH) * total


@kernel
@no_type_check
def _begin(x, begins, count, group, bits):  # pragma: no cover
    sum_groups(x, begins, count, group, bits)


@inner_exact
@no_type_check
def _in_turns(ahead, bits, values, scales, some, x, begins, totals, tokens, inputs, groups):
    # pragma: no cover
    """Adds products of some of all `groups`, a few tokens at a time."""
    group, turns, first = inputs // groups, (tokens + MOST_VECTORS - 1) // MOST_VECTORS, 0
    for turn in range(turns):
        end = tokens * (turn + 1) // turns
        given, into, count = x + 2 * inputs * first, totals + 4 * BLOCK * first, end - first
        start, steps, step = begins + 4 * groups * first, 2 * inputs, 4 * groups
        if bits == 8:
            _dot_8(ahead, count, values, scales, some, group, given, steps, start, step, into)
        elif bits == 4:
            _dot_4(ahead, count, values, scales, some, group, given, steps, start, step, into)
        else:
            _dot_wide(0, count, values, scales, some, group, given, steps, start, step, into)
        first = end


@inner_sums
@no_type_check
def _add_scaled(
    tiles, block, group, groups, scales, x, begins, totals, tokens, inputs, all_groups,
    room
):  # fmt: skip  # pragma: no cover
    """Adds products of widened groups, each by itself; `room` is for the sums of one of them."""
    of_begins, of_scales = singles(begins, tokens * all_groups), halves(scales, BLOCK * groups)
    of_totals, found = pointer(singles(totals, tokens * BLOCK)), pointer(room)
    for g in range(groups):
        for t in range(tokens):
            begin = splat(of_begins[t * all_groups + g])
            for r in range(0, BLOCK, LANES):
                store(begin, found, t * BLOCK + r)
        part = block + 2 * BLOCK * group * g
        given = x + 2 * group * g
        add_products(
            tiles, 0, part, given, 2 * inputs, group // 2, room.ctypes.data, tokens,
            0 if tiles != 0 else part + 2 * BLOCK * group
        )  # fmt: skip
        own = pointer(of_scales[g * BLOCK :])
        a, b = load(own, 0), load(own, LANES)
        c, d = load(own, 2 * LANES), load(own, 3 * LANES)
        for at in range(0, tokens * BLOCK, BLOCK):
            store(fma(load(found, at), a, load(of_totals, at)), of_totals, at)
            at += LANES
            store(fma(load(found, at), b, load(of_totals, at)), of_totals, at)
            at += LANES
            store(fma(load(found, at), c, load(of_totals, at)), of_totals, at)
            at += LANES
            store(fma(load(found, at), d, load(of_totals, at)), of_totals, at)


@apart
@calls(add_products)
@no_type_check
def add_quantised(
    tiles, bits, values, scales, block, x, begins, totals, tokens, inputs, groups, following
):  # fmt: skip  # pragma: no cover
    """Adds products of a block with some tokens to `totals: float32[tokens, BLOCK]`.

    By `tiles` that `take_tiles` gave, if any. For them and for many tokens groups are widened
    before, in `block`, which has room for `WIDENED` pairs. `following` is the block that is needed
    next. All that isn't a number of something is an address.
    """
    group = inputs // groups
    by_tiles, of_group = tiles != 0 and tokens >= FEWEST_BY_TILES, group * BLOCK * bits // 8
    many = by_tiles or tokens > FEW
    by_group = many and (by_tiles or not BY_PAIRS)
    room = aligned(tokens * BLOCK if by_group else 0)
    # The last groups begin to read another block than that behind them.
    others = 0 if following == values + of_group * groups else (AHEAD + of_group - 1) // of_group
    before = max(0, groups - others)
    g = 0
    while g < groups:
        own, some = values + of_group * g, groups - g
        ahead, own_bits = AHEAD, bits
        if many:
            some = min(TOGETHER // group, some)
            if bits == 8:
                _widen_8(own, some * group, block)
            else:
                _widen_4(own, some * group, block)
            own, own_bits = block, 16
            if by_group:
                _add_scaled(
                    tiles, own, group, some, scales + 2 * BLOCK * g, x + 2 * g * group,
                    begins + 4 * g, totals, tokens, inputs, groups, room
                )  # fmt: skip
                g += some
                continue
        elif g < before:
            some = before
        else:
            ahead = following - own
        # One call in one place: the compiler would write its products out for each.
        _in_turns(
            ahead, own_bits, own, scales + 2 * BLOCK * g, some, x + 2 * g * group, begins + 4 * g,
            totals, tokens, inputs, groups
        )  # fmt: skip
        g += some


@parallel_kernel
@calls(add_quantised)
@no_type_check
def _multiply(tiles, x, values, scales, begins, out, tokens, outputs, inputs, groups, bits):
    # pragma: no cover
    for n in numba.prange((outputs + BLOCK - 1) // BLOCK):
        of_block = inputs * BLOCK * bits // 8
        own = values + np.int64(n) * of_block
        scale = scales + np.int64(n) * (2 * BLOCK * groups)
        registers = take_tiles(tiles and tokens >= FEWEST_BY_TILES)
        block = aligned(WIDENED if registers != 0 or tokens > FEW else 0).view(np.uint32)
        totals = aligned(min(tokens, TOKENS) * BLOCK)
        lots = (tokens + TOKENS - 1) // TOKENS
        for lot in range(lots):
            first, end = tokens * lot // lots, tokens * (lot + 1) // lots
            given, begin, into = x + 2 * first * inputs, begins + 4 * first * groups, totals.ctypes
            totals[:] = 0
            add_quantised(
                registers, bits, own, scale, block.ctypes.data, given, begin, into.data,
                end - first, inputs, groups, own + of_block
            )  # fmt: skip
            size = min(BLOCK, outputs - n * BLOCK)
            for t in range(end - first):
                result = halves(out + 2 * ((first + t) * outputs + n * BLOCK), size)
                for i in range(size):
                    result[i] = narrow(totals[t * BLOCK + i])
        release_tiles(registers)
