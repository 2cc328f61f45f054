"""Keys and values of a sequence in blocks, as `packed_dot` multiplies them.

A block has `OUTPUTS` tokens, from a multiple of that on; what is no token in it is zero. Keys are
pairs of a token's numbers, `[dim / 2, tokens, 2]`. Values are pairs of tokens, for `OUTPUTS` of
their numbers at a time, `[dim / OUTPUTS, tokens / 2, OUTPUTS, 2]`, and zeros behind the last.
"""

from typing import no_type_check

import numba
import numpy as np

from hybridrt.kernels.cpu.bfloat16 import halves, words
from hybridrt.kernels.cpu.jit import inner, parallel_kernel
from hybridrt.kernels.cpu.packed_dot import OUTPUTS


@inner
@no_type_check
def _pack_keys(keys, step, size, skipped, count, block):  # pragma: no cover  (compiled, as all)
    pairs = size // 2
    if count < OUTPUTS:
        block[:] = 0
    for t in range(count):
        key = words(keys + 2 * t * step, pairs)
        for pair in range(pairs):
            block[pair * OUTPUTS + skipped + t] = key[pair]


@inner
@no_type_check
def _pack_values(values, step, size, skipped, count, block):  # pragma: no cover
    if count < OUTPUTS or size % OUTPUTS > 0:
        block[:] = 0
    for t in range(skipped // 2 * 2, skipped + count, 2):
        has_one, has_other = t >= skipped, t + 1 < skipped + count
        one = halves(values + 2 * (t - skipped) * step, size)
        other = halves(values + 2 * (t + 1 - skipped) * step, size)
        for first in range(0, size, OUTPUTS):
            some = min(OUTPUTS, size - first)
            at = (first + t) * OUTPUTS // 2
            if has_one and has_other:
                for d in range(some):
                    block[at + d] = np.uint32(one[first + d]) | np.uint32(other[first + d]) << 16
            elif has_one:
                for d in range(some):
                    block[at + d] = np.uint32(one[first + d])
            else:
                for d in range(some):
                    block[at + d] = np.uint32(other[first + d]) << 16


@parallel_kernel
@no_type_check
def pack_tokens(
    k, k_head, k_token, k_size, v, v_head, v_token, v_size, heads, tokens, skipped, k_blocks,
    v_blocks
):  # fmt: skip  # pragma: no cover
    """Fills `k_blocks` and `v_blocks`, uint32 `[heads, blocks, pairs]`.

    `k` and `v` are addresses, and what follows on them steps in numbers. The first token is
    `skipped` tokens behind the beginning of the first block.
    """
    blocks = k_blocks.shape[1]
    for job in numba.prange(heads * blocks):
        head, block = divmod(np.int64(job), blocks)
        before = skipped if block == 0 else 0
        first = block * OUTPUTS + before - skipped
        count = min(tokens - first, OUTPUTS - before)
        keys = k + 2 * (head * k_head + first * k_token)
        values = v + 2 * (head * v_head + first * v_token)
        _pack_keys(keys, k_token, k_size, before, count, k_blocks[head, block])
        _pack_values(values, v_token, v_size, before, count, v_blocks[head, block])
