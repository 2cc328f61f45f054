"""Decays among a chunk's tokens, and tiles of its inputs.

Sums of logs from either end, no differences of sums: a token that forgets everything takes a sum
to -1,000 and beyond, where float32 has no digits left for those of the others.
"""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit


@jit
@no_type_check
def tile_of(part, t, stop, t_stride, channel, channel_stride, SIZE: tl.constexpr):
    """Some channels of some tokens; zeros behind the last of either."""
    at = (t * t_stride)[:, None] + (channel * channel_stride)[None, :]
    live = (t < stop)[:, None] & (channel < SIZE)[None, :]
    return tl.load(part + at, mask=live, other=0.0)


@jit
@no_type_check
def log_up_to(logs, i):
    """The sum of all logs up to each token, its own among them."""
    return _sum_of(logs, i[:, None] >= i[None, :])


@jit
@no_type_check
def log_behind(logs, i):
    """The sum of the logs of all tokens behind each."""
    return _sum_of(logs, i[:, None] < i[None, :])


@jit
@no_type_check
def _sum_of(logs, are_summed):
    """Of `[tokens]` or `[tokens, channels]`."""
    if len(logs.shape) == 1:
        return tl.sum(tl.where(are_summed, logs[None, :], 0.0), 1)
    else:
        return tl.dot(tl.where(are_summed, 1.0, 0.0), logs, input_precision=FLOAT32_DOT)


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
def decay_to_middle(logs, is_late, i, half):
    """Of each channel: to the middle of a token's pair of blocks, or from there to the token.

    No product of two matrices has a decay for each channel, but from a token of the first block
    to one of the second it splits at the middle, into parts that are at most 1. Sums begin at
    the middle, so they need no digits for what is forgotten elsewhere.
    """
    is_same = i[:, None] // half == i[None, :] // half
    is_between = tl.where(is_late[:, None], i[None, :] <= i[:, None], i[None, :] > i[:, None])
    return tl.exp(_sum_of(logs, is_same & is_between))
