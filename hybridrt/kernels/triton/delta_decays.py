"""Decays among a chunk's tokens, and tiles of its inputs.

Sums of logs from either end, no differences of sums: a token that forgets everything takes a sum
to -1,000 and beyond, where float32 has no digits left for those of the others.
"""

from typing import no_type_check

import triton.language as tl
from triton import knobs

from hybridrt.kernels.triton.launch import jit

_DIGITS = tl.constexpr(tl.float32 if knobs.runtime.interpret else tl.bfloat16)
"""The interpreter has no products of bfloat16."""


@jit
@no_type_check
def tile_of(part, t, stop, t_stride, channel, channel_stride, SIZE: tl.constexpr):
    """Some channels of some tokens; zeros behind the last of either."""
    at = (t * t_stride)[:, None] + (channel * channel_stride)[None, :]
    live = (t < stop)[:, None] & (channel < SIZE)[None, :]
    return tl.load(part + at, mask=live, other=0.0)


@jit
@no_type_check
def log_behind(logs, i):
    """The sum of the logs of all tokens behind each."""
    return tl.sum(tl.where(i[:, None] < i[None, :], logs[None, :], 0.0), 1)


@jit
@no_type_check
def decay_between(logs, i):
    """From behind token j up to token i, `[i, j]`; 0 for j > i.

    In float64, and kept with its rounding, so that differences have digits left.
    """
    exact = tl.cumsum(logs.to(tl.float64), 0)
    sums = exact.to(tl.float32)
    rest = (exact - sums.to(tl.float64)).to(tl.float32)
    between = (sums[:, None] - sums[None, :]) + (rest[:, None] - rest[None, :])
    return tl.where(i[:, None] >= i[None, :], tl.exp(tl.minimum(between, 0.0)), 0.0)


@jit
@no_type_check
def digits_of(logs):
    """Logs in float32 as three numbers of bfloat16 that add up to them: once, for many sums."""
    high = logs.to(_DIGITS)
    logs -= high.to(tl.float32)
    middle = logs.to(_DIGITS)
    return high, middle, (logs - middle.to(tl.float32)).to(_DIGITS)


@jit
@no_type_check
def sum_of(digits, are_summed):
    """For each token i, of each channel: the sum of those tokens' logs that are summed, `[i, j]`.

    Each product is exact, by a tensor core.
    """
    high, middle, low = digits
    ones = tl.where(are_summed, 1.0, 0.0).to(_DIGITS)
    return tl.dot(ones, high, tl.dot(ones, middle, tl.dot(ones, low)))


@jit
@no_type_check
def decay_to_middle(digits, is_late, i, half):
    """Of each channel: to the middle of a token's pair of blocks, or from there to the token.

    No product of two matrices has a decay for each channel, but from a token of the first block
    to one of the second it splits at the middle, into parts that are at most 1. Sums begin at
    the middle, so they need no digits for what is forgotten elsewhere.
    """
    is_same = (i[:, None] ^ i[None, :]) < half
    is_between = tl.where(is_late[:, None], i[None, :] <= i[:, None], i[None, :] > i[:, None])
    return tl.exp(sum_of(digits, is_same & is_between))


@jit
@no_type_check
def across_pairs(i, half):
    """Where a token of the second block of a pair meets one of the first, `[i, j]`.

    By bits, as a division takes a GPU many steps.
    """
    is_pair = (i[:, None] ^ i[None, :]) & -half == half
    return is_pair & ((i & half) != 0)[:, None]
