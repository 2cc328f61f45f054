"""What attention kernels share: who sees whom, and a softmax that is built up tile by tile."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.gates import tanh
from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit


@jit
@no_type_check
def first_visible(position, WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """The first token that the one at `position` sees; a window of 0 is none."""
    if WINDOW == 0:
        return position * 0
    elif CHUNKED:
        return position // WINDOW * WINDOW
    else:
        return tl.maximum(position - WINDOW + 1, 0)


@jit
@no_type_check
def part_of_split(first, stop, split, splits, BLOCK_N: tl.constexpr):
    """The tokens of `first:stop` that a split takes: whole tiles, as many for each."""
    tokens = tl.cdiv(tl.cdiv(stop - first, BLOCK_N), splits) * BLOCK_N
    start = first + split * tokens
    return start, tl.minimum(start + tokens, stop)


@jit
@no_type_check
def add_tile(scores, v, v_scale, largest, total, acc, MASKED: tl.constexpr, factor=1.0):
    """Takes a tile of tokens into a running softmax: logits to base 2, and their values.

    A logit is a score times `factor`, which is above 0. MASKED: where a query doesn't see a token
    its score is -inf.
    """
    new_largest = tl.maximum(largest, tl.max(scores, 1) * factor)
    base = new_largest
    if MASKED:
        # A query that has seen nothing yet: -inf less -inf would be NaN.
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores * factor - base[:, None])
    shrink = tl.exp2(largest - base)
    total = total * shrink + tl.sum(weights, 1)
    weights = (weights * v_scale).to(v.dtype)
    acc = tl.dot(weights, v, acc * shrink[:, None], input_precision=FLOAT32_DOT)
    return new_largest, total, acc


@jit
@no_type_check
def soft_capped(scores, cap):
    """`cap * tanh(scores / cap)`."""
    return cap * tanh(scores / cap)


@jit
@no_type_check
def divided(acc, total):
    """`acc / total`; zeros for what saw nothing."""
    return acc / tl.where(total == 0, 1.0, total)[:, None]


@jit
@no_type_check
def log_of(largest, total):
    """The logarithm, to base 2, of a denominator."""
    none = total == 0
    return tl.where(none, float("-inf"), largest + tl.log2(tl.where(none, 1.0, total)))
