"""Products of a bfloat16 matrix with some vectors by AMX.

However many vectors there are, each sum is the same: see `one_vector`.
"""

from typing import no_type_check

from hybridrt.kernels.blocked_matrices import BLOCK as OUTPUTS
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.one_vector import multiply_one
from hybridrt.kernels.cpu.tile_registers import (
    ROWS,
    SUM_BYTES,
    dot,
    dot_in_halves,
    dot_rows,
    dot_runs,
    hold,
)

AHEAD = 2
"""Times `ROWS` pairs of inputs, from reading them from memory to multiplying them."""

AHEAD_OF_TURNS, AHEAD_OF_MANY = 4, 8
"""The same where vectors take turns, up to `FEW_TURNS` or more, which share so many steps in the
nearest caches: weights come from memory in time for few turns, and sums are put down and taken up
again half as often for many."""

FEW_TURNS = 4

LINES = 4 * OUTPUTS * ROWS // 64
"""Of memory, for all weights of `ROWS` pairs."""


@inner
@no_type_check
def add_by_tiles(
    tiles, anew, block, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums, count, following
):  # fmt: skip  # pragma: no cover  (compiled, as all below)
    """Adds products of a block with `count` vectors to `sums: float32[count, OUTPUTS]`.

    `tiles` come from `take_tiles`. `anew` writes sums, whatever stood there. All but `count` and
    `pairs`, of inputs, are addresses and bytes: from a pair to the next, and from the first half
    of the outputs to the second. `following` is the block that is needed next, and 0 where
    blocks don't come from memory.
    """
    if count == 1:
        multiply_one(anew, block, row_bytes, half_bytes, vectors, pairs, sums, following)
    else:
        _add_many(
            tiles, anew, block, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums, count,
            following
        )  # fmt: skip


@inner
@no_type_check
def _add_many(
    tiles, anew, block, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums, count, following
):  # fmt: skip  # pragma: no cover
    """Turns of a register of vectors, each of which reads a share of what the block has next."""
    turns, own_bytes, end = (count + ROWS - 1) // ROWS, ROWS * row_bytes, block + row_bytes * pairs
    size = (count + turns - 1) // turns  # as even as can be: to hold other sizes takes time
    steps_ahead, most = AHEAD, pairs
    if turns > 1:
        steps_ahead = most = AHEAD_OF_TURNS if turns <= FEW_TURNS else AHEAD_OF_MANY
    begin, ahead, all_rows, all_lines = 0, 0, 0, 0
    while begin < pairs:
        # Whole registers of pairs; the last pairs, if they are fewer, are one.
        steps, own = min(max(1, (pairs - begin) // ROWS), most), block + row_bytes * begin
        later = own + steps_ahead * own_bytes
        of_block = (end - later) // own_bytes
        if following == 0:
            pass
        elif of_block > 0:
            steps, all_rows, all_lines, ahead = min(steps, of_block), ROWS, 0, later
        else:  # what isn't of this block may not be there
            all_rows, all_lines, ahead = 0, LINES, following + max(0, later - end)
        for turn in range(turns):
            first = size * turn
            some = min(size, count - first)
            rows = all_rows * (turn + 1) // turns - all_rows * turn // turns
            lines = all_lines * (turn + 1) // turns - all_lines * turn // turns
            hold(tiles, some, min(ROWS, pairs - begin))
            given, into = vectors + vector_bytes * first + 4 * begin, sums + SUM_BYTES * first
            if turns == 1:
                dot(
                    anew, own, row_bytes, half_bytes, given, vector_bytes, steps, into, ahead, rows,
                    lines
                )  # fmt: skip
            else:
                dot_in_halves(
                    anew, own, row_bytes, half_bytes, given, vector_bytes, steps, into, ahead, rows,
                    lines
                )  # fmt: skip
            ahead += (row_bytes * rows + 64 * lines) * steps
        begin += ROWS * steps
        anew = False


@inner
@no_type_check
def add_near(
    tiles, anew, block, vectors, vector_bytes, pairs, sums, count
):  # fmt: skip  # pragma: no cover
    """`add_by_tiles` for a whole block in the nearest caches: nothing is asked for ahead."""
    row_bytes, steps, rest = 4 * OUTPUTS, pairs // ROWS, pairs % ROWS
    for first in range(0, count, ROWS):
        some, into = min(ROWS, count - first), sums + SUM_BYTES * first
        own = vectors + vector_bytes * first
        if steps > 0:
            hold(tiles, some, ROWS)
            dot_in_halves(
                anew, block, row_bytes, row_bytes // 2, own, vector_bytes, steps, into, 0, 0, 0
            )  # fmt: skip
        if rest > 0:
            hold(tiles, some, rest)
            dot_in_halves(
                anew and steps == 0, block + row_bytes * ROWS * steps, row_bytes, row_bytes // 2,
                own + 4 * ROWS * steps, vector_bytes, 1, into, 0, 0, 0
            )  # fmt: skip


@inner
@no_type_check
def multiply_runs(tiles, anew, runs, blocks, count, steps, sums):  # pragma: no cover
    """Adds products of `RUNS` times `ROWS` vectors to `sums: float32[RUNS * ROWS, ROWS]`.

    `runs` points to an address of `ROWS` vectors and the bytes from one to the next, for each run.
    Each of `count` blocks, one behind the other, is multiplied with these vectors: of its
    `[steps * ROWS, ROWS, 2]` numbers, pairs of inputs of `ROWS` outputs stand side by side.
    They and `sums` are addresses. `anew` writes sums, whatever stood there.
    """
    hold(tiles, ROWS, ROWS)
    dot_runs(anew, runs, blocks, count, steps, sums)


@inner
@no_type_check
def multiply_rows(
    tiles, anew, runs, count, vectors, vector_bytes, apart, results, steps, sums, later
):  # fmt: skip  # pragma: no cover
    """Adds weighted rows, where they stand, to `sums: float32[steps, ROWS, 2, ROWS]`.

    At `runs` stand an address of `ROWS` rows and the bytes from one to the next, for each run of
    the `count` rows. A row is `[steps * ROWS, 2]` numbers, of which pairs can't be multiplied with
    one weight each. So there are two kinds of vectors of weights, `apart` from each other: in one
    each stands before a zero, and finds the first numbers of pairs, in the other behind it. An
    infinite number makes its neighbour's sum NaN, too. So many `results` there are, up to `ROWS`;
    `anew` writes their sums, whatever stood there. At `later` stand runs that are needed next, or
    it is 0. All but `count`, `results` and `steps` are addresses and bytes.
    """
    whole, rest = count // ROWS, count % ROWS
    lines, coming = (0, runs) if later == 0 else (ROWS, later)
    if whole > 0:
        hold(tiles, results, ROWS)
        dot_rows(anew, runs, whole, vectors, vector_bytes, apart, steps, sums, coming, lines)
    if rest > 0:
        hold(tiles, results, rest)
        skipped, own = 16 * whole, vectors + 4 * ROWS * whole
        dot_rows(
            anew and whole == 0, runs + skipped, 1, own, vector_bytes, apart, steps, sums,
            coming + skipped, lines
        )  # fmt: skip
