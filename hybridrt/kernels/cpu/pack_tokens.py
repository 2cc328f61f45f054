"""Keys and values of a sequence in blocks, as `packed_dot` multiplies them, out of their pages.

A block has `OUTPUTS` tokens, from a multiple of that on; what is no token in it is zero. Keys are
pairs of a token's numbers, `[dim / 2, tokens, 2]`. Values are pairs of tokens, for `OUTPUTS` of
their numbers at a time, `[dim / OUTPUTS, tokens / 2, OUTPUTS, 2]`, and zeros behind the last.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from hybridrt.kernels.cpu.bfloat16 import as_singles, halves, singles, words
from hybridrt.kernels.cpu.jit import argument, inner
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.transpose import turn
from hybridrt.kernels.cpu.vectors import LANES, pointer


@argument
class Pages(NamedTuple):
    """Where the keys or values of a layer stand: the first one's address, and steps in numbers."""

    address: int
    block: int
    head: int
    token: int
    size: int


@inner
@no_type_check
def _find(pages, table, place, block_size):  # pragma: no cover  (compiled, as all below)
    """The address of a head 0's token, from the places that a table of blocks has on."""
    block, offset = np.int64(table[place // block_size]), place % block_size
    return pages.address + 2 * (block * pages.block + offset * pages.token)


@inner
@no_type_check
def pack_keys(k, head, table, place, block_size, skipped, count, block):  # pragma: no cover
    """`count` tokens of a head, from a place on, into a block behind the `skipped` first ones."""
    pairs, turned = k.size // 2, k.token % 2 == 0
    if count < OUTPUTS:
        block[:] = 0
    to, t = pointer(as_singles(block)), 0
    while t < count:
        first = _find(k, table, place + t, block_size) + 2 * head * k.head
        # Tokens of a page are a step apart.
        side_by_side = min(count - t, block_size - (place + t) % block_size)
        whole = pairs // LANES * LANES if turned and side_by_side >= LANES else 0
        some = LANES if whole > 0 else 1
        for pair in range(0, whole, LANES):
            keys = pointer(singles(first, pairs))
            turn(keys, pair, k.token // 2, to, pair * OUTPUTS + skipped + t, OUTPUTS)
        for i in range(some):
            key = words(first + 2 * i * k.token, pairs)
            for pair in range(whole, pairs):
                block[pair * OUTPUTS + skipped + t + i] = key[pair]
        t += some


@inner
@no_type_check
def _pack_values(v, head, table, place, block_size, skipped, count, block):  # pragma: no cover
    size, of_head = v.size, 2 * head * v.head
    if count < OUTPUTS or size % OUTPUTS > 0:
        block[:] = 0
    for t in range(skipped // 2 * 2, skipped + count, 2):
        has_one, has_other = t >= skipped, t + 1 < skipped + count
        at_one = place + t - skipped if has_one else place
        at_other = at_one + 1 if has_one and has_other else at_one
        one = halves(_find(v, table, at_one, block_size) + of_head, size)
        other = halves(_find(v, table, at_other, block_size) + of_head, size)
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


@inner
@no_type_check
def pack_block(
    block, k, more, v, head, table, place, block_size, tokens, skipped, keys, values
):  # fmt: skip  # pragma: no cover
    """Fills one head's block of keys and of values, both uint32.

    Keys are `[k, more]`. These and `v` are `Pages`, `table: int32` has their blocks of
    `block_size` tokens. The first of so many tokens stands at a place in those, `skipped` tokens
    behind the beginning of block 0.
    """
    before = skipped if block == 0 else 0
    first = block * OUTPUTS + before - skipped
    count, place = min(tokens - first, OUTPUTS - before), place + first
    split = k.size // 2 * OUTPUTS
    pack_keys(k, head, table, place, block_size, before, count, keys[:split])
    if more.size > 0:
        pack_keys(more, head, table, place, block_size, before, count, keys[split:])
    _pack_values(v, head, table, place, block_size, before, count, values)
