"""quantised_linear in numba: groups of weights are widened as they are read, and multiplied.

Inputs are made whole numbers first (`whole_inputs`). A group's sums are multiplied by its scales in
float32. For a few tokens weights are widened in registers; for more once for all of them, in the
nearest cache, from where AMX takes them if there is AMX.
"""

from typing import no_type_check

import numba
import torch
from jaxtyping import BFloat16, UInt8
from numba.extending import register_jitable
from torch import Tensor

from hybridrt.kernels.blocked_matrices import BLOCK
from hybridrt.kernels.cpu.bfloat16 import as_words
from hybridrt.kernels.cpu.jit import apart, calls, inner, inner_exact
from hybridrt.kernels.cpu.packed_dot import MOST_VECTORS
from hybridrt.kernels.cpu.packed_linear import write_results
from hybridrt.kernels.cpu.quantised_dot import (
    AHEAD,
    AHEAD_OF_4,
    add_bytes,
    add_group,
    make_group_dot,
    make_group_widen,
)
from hybridrt.kernels.cpu.share import parallel_kernel, share, share_each, threads_for
from hybridrt.kernels.cpu.streams import end_streams, streams
from hybridrt.kernels.cpu.tile_registers import (
    ROWS,
    dot_both,
    dot_signed,
    dot_unsigned,
    hold,
    multiplies_tiles,
    release_tiles,
    take_tiles,
)
from hybridrt.kernels.cpu.vectors import LINE, aligned, pointer
from hybridrt.kernels.cpu.whole_inputs import make_whole, of_groups, row_bytes

FEW = 2 * MOST_VECTORS
"""Tokens for which weights are widened again with every turn of them."""

FEWEST_BY_BYTES, FEWEST_BY_PAIRS = 10, 8
"""Tokens that AMX multiplies with weights of 8 bits, and of 4: fewer take less time in one turn or
two, without sums that are put down."""

TOKENS = 128  # at a time: their sums stay in the second cache
TOGETHER = 128  # inputs that are widened at once
WIDENED = TOGETHER // 2 * BLOCK  # pairs that they are, of all outputs: 16 KiB

_DIRECT = range(1, min(MOST_VECTORS, FEW) + 1)
_dot_8, _dot_4, _dot_wide = (
    make_group_dot(8, _DIRECT),
    make_group_dot(4, _DIRECT),
    make_group_dot(16),
)
_widen_8, _widen_4 = make_group_widen(8, False), make_group_widen(4, False)
_to_bytes_8, _to_bfloat16_4 = make_group_widen(8, True), make_group_widen(4, True)


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
    if not tokens:
        return out
    tiles = multiplies_tiles() and enough_for_tiles(bits, tokens)
    rows = torch.empty(tokens, row_bytes(inputs, groups), dtype=torch.uint8)
    of_inputs = x.data_ptr(), rows.data_ptr(), tokens, inputs, inputs // groups, bits, tiles
    _make_whole(threads_for(tokens * inputs), *of_inputs)
    places = rows.data_ptr(), values.data_ptr(), scales.data_ptr(), out.data_ptr()
    sizes = tokens, outputs, inputs, groups, bits
    _multiply(numba.get_num_threads(), tiles, *places, *sizes)
    return out


@inner
@no_type_check
def _make_row_whole(t, x, rows, inputs, group, bits, for_tiles):
    # pragma: no cover  (compiled, as all below)
    row = rows + t * row_bytes(inputs, inputs // group)
    make_whole(x + 2 * t * inputs, row, inputs, group, bits, for_tiles)


@parallel_kernel
@no_type_check
def _make_whole(threads, x, rows, tokens, inputs, group, bits, for_tiles):  # pragma: no cover
    share_each(_make_row_whole, threads, tokens, (x, rows, inputs, group, bits, for_tiles))


@inner_exact
@no_type_check
def _in_turns(ahead, bits, values, scales, some, g, rows, totals, tokens, inputs, groups):
    # pragma: no cover
    """Adds products of some of all `groups` from the g-th on, a few tokens at a time."""
    group, turns, first = inputs // groups, (tokens + MOST_VECTORS - 1) // MOST_VECTORS, 0
    step = row_bytes(inputs, groups)
    for turn in range(turns):
        end = tokens * (turn + 1) // turns
        own, into, count = rows + step * first, totals + 4 * BLOCK * first, end - first
        given, powers = own + 2 * g * group, own + of_groups(inputs) + 8 * g
        if bits == 8:
            _dot_8(ahead, count, values, scales, some, group, given, powers, step, into)
        elif bits == 4:
            _dot_4(ahead, count, values, scales, some, group, given, powers, step, into)
        else:
            _dot_wide(0, count, values, scales, some, group, given, powers, step, into)
        first = end


@register_jitable
@no_type_check
def enough_for_tiles(bits, tokens):
    """Whether AMX, if there is AMX, takes less time for so many tokens than vectors do."""
    return tokens >= (FEWEST_BY_BYTES if bits == 8 else FEWEST_BY_PAIRS)


@inner_exact
@no_type_check
def _add_by_bytes(
    tiles, block, group, groups, scales, g, rows, totals, tokens, inputs, all_groups, room, ahead
):  # fmt: skip  # pragma: no cover
    """Adds products of groups of 8 bits that were made bytes: of all those from the g-th on.

    `room` is for the sums of a register of tokens, with their upper bytes and with the lower ones.
    From `ahead` on as many weights begin to be read.
    """
    step, quads, row = row_bytes(inputs, all_groups), group // 4, 4 * BLOCK
    steps, upper, lower = max(1, quads // ROWS), room, room + 4 * ROWS * BLOCK
    products = 2 * steps * groups * ((tokens + ROWS - 1) // ROWS)
    lines = (BLOCK * group * groups // LINE + products - 1) // products
    for begin in range(0, tokens, ROWS):
        some = min(ROWS, tokens - begin)
        hold(tiles, some, min(ROWS, quads))
        own = rows + step * begin
        for i in range(groups):
            part, given = block + BLOCK * group * i, own + 2 * inputs + (g + i) * group
            dot_signed(True, part, row, row // 2, given, step, steps, upper, ahead, 0, lines)
            given, ahead = given + inputs, ahead + LINE * lines * steps
            dot_unsigned(True, part, row, row // 2, given, step, steps, lower, ahead, 0, lines)
            ahead += LINE * lines * steps
            of_group = own + of_groups(inputs) + 8 * (g + i)
            of_scales, to = scales + 2 * BLOCK * i, totals + 4 * BLOCK * begin
            add_bytes(some, upper, lower, of_scales, of_group, step, to)


@inner_exact
@no_type_check
def _add_by_pairs(
    tiles, block, group, groups, scales, g, rows, totals, tokens, inputs, all_groups, room, ahead
):  # fmt: skip  # pragma: no cover
    """The same of groups of 4 bits that were made bfloat16.

    A group's sum has at most 24 bits, as float32 has: it is exact, whatever is added first.
    """
    step, row = row_bytes(inputs, all_groups), 4 * BLOCK
    products = groups * ((tokens + ROWS - 1) // ROWS)
    lines = (BLOCK * group * groups // 2 // LINE + products - 1) // products
    for begin in range(0, tokens, ROWS):
        some = min(ROWS, tokens - begin)
        hold(tiles, some, group // 2)
        own = rows + step * begin
        for i in range(groups):
            part, given = block + 2 * BLOCK * group * i, own + 2 * inputs + 4 * (g + i) * group
            dot_both(True, part, row, row // 2, given, step, 1, room, ahead, 0, lines)
            ahead += LINE * lines
            of_group = own + of_groups(inputs) + 8 * (g + i)
            of_scales, to = scales + 2 * BLOCK * i, totals + 4 * BLOCK * begin
            add_group(some, room, of_scales, of_group, step, to)


@apart
@no_type_check
def add_quantised(
    tiles, bits, values, scales, block, rows, totals, tokens, inputs, groups, following
):  # fmt: skip  # pragma: no cover
    """Adds products of a block with some tokens to `totals: float32[tokens, BLOCK]`.

    `rows` are what `make_whole` wrote of each token. By `tiles` that `take_tiles` gave, if any: for
    them and for many tokens groups are widened before, in `block`, which has room for `WIDENED`
    pairs. `following` is the block that is needed next. All that isn't a number of something is an
    address.
    """
    group = inputs // groups
    by_tiles, of_group = tiles != 0 and enough_for_tiles(bits, tokens), group * BLOCK * bits // 8
    many = by_tiles or tokens > FEW
    room = aligned(2 * ROWS * BLOCK if by_tiles else 0)
    # The last groups begin to read another block than that behind them.
    reach = AHEAD_OF_4 if bits == 4 else AHEAD
    others = 0 if following == values + of_group * groups else (reach + of_group - 1) // of_group
    before = max(0, groups - others)
    g = 0
    while g < groups:
        own, some = values + of_group * g, groups - g
        ahead, own_bits, own_scales = reach, bits, scales + 2 * BLOCK * g
        if many:
            some = min(TOGETHER // group, some)
            if by_tiles:
                after = own + of_group * some if g + some < groups else following
                if bits == 8:
                    _to_bytes_8(own, some * group, block)
                    _add_by_bytes(
                        tiles, block, group, some, own_scales, g, rows, totals, tokens, inputs,
                        groups, room.ctypes.data, after
                    )  # fmt: skip
                else:
                    _to_bfloat16_4(own, some * group, block)
                    _add_by_pairs(
                        tiles, block, group, some, own_scales, g, rows, totals, tokens, inputs,
                        groups, room.ctypes.data, after
                    )  # fmt: skip
                g += some
                continue
            if bits == 8:
                _widen_8(own, some * group, block)
            else:
                _widen_4(own, some * group, block)
            own, own_bits = block, 16
        elif g < before:
            some = before
        else:
            ahead = following - own
        # One call in one place: the compiler would write its products out for each.
        _in_turns(
            ahead, own_bits, own, own_scales, some, g, rows, totals, tokens, inputs, groups
        )  # fmt: skip
        g += some


@inner
@no_type_check
def _multiply_blocks(
    worker, workers, tiles, rows, values, scales, out, tokens, outputs, inputs, groups, bits
):  # fmt: skip  # pragma: no cover
    """A worker's share of the outputs of all tokens: blocks that are neighbours."""
    blocks, of_block = (outputs + BLOCK - 1) // BLOCK, inputs * BLOCK * bits // 8
    registers, lots = take_tiles(tiles), (tokens + TOKENS - 1) // TOKENS
    room = as_words(aligned(WIDENED if registers != 0 or tokens > FEW else 0))
    sums = aligned(min(tokens, TOKENS) * BLOCK)
    streaming = streams(tokens, out, 2 * outputs)
    for n in range(blocks * worker // workers, blocks * (worker + 1) // workers):
        own, of_scales = values + n * of_block, scales + n * (2 * BLOCK * groups)
        for lot in range(lots):
            first, end = tokens * lot // lots, tokens * (lot + 1) // lots
            sums[:] = 0
            add_quantised(
                registers, bits, own, of_scales, room.ctypes.data,
                rows + first * row_bytes(inputs, groups), sums.ctypes.data, end - first, inputs,
                groups, own + of_block
            )  # fmt: skip
            size, results = min(BLOCK, outputs - n * BLOCK), out + 2 * (first * outputs + n * BLOCK)
            write_results(pointer(sums), end - first, size, results, outputs, streaming)
    if streaming:
        end_streams()
    release_tiles(registers)


@parallel_kernel
@calls(add_quantised)
@no_type_check
def _multiply(threads, tiles, rows, values, scales, out, tokens, outputs, inputs, groups, bits):
    # pragma: no cover
    given = tiles, rows, values, scales, out, tokens, outputs, inputs, groups, bits
    share(_multiply_blocks, threads, given)
