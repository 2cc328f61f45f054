"""Products of a bfloat16 matrix with some vectors by AMX.

However many vectors there are, each sum is the same: see `one_vector`.
"""

from typing import no_type_check

from hybridrt.kernels.blocked_matrices import BLOCK as OUTPUTS
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.one_vector import multiply_one
from hybridrt.kernels.cpu.tile_registers import ROWS, SUM_BYTES, dot_1, dot_2, dot_runs, hold

AHEAD = 2
"""Times `ROWS` pairs of inputs, from reading them from memory to multiplying them."""

AHEAD_OF_TWO = 3
"""The same for two turns of vectors, which share so many steps in the first cache."""

MOST_STEPS = 8
"""Times `ROWS` pairs of inputs for many vectors, so that their weights stay in the first cache."""

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
    elif count <= 2 * ROWS:
        _add_some(
            tiles, anew, block, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums, count,
            following
        )  # fmt: skip
    else:
        _add_many(
            tiles, anew, block, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums, count,
            following
        )  # fmt: skip


@inner
@no_type_check
def _steps(pairs, begin):  # pragma: no cover
    """Whole registers of pairs from `begin` on; the last pairs, if they are fewer, are one."""
    return max(1, (pairs - begin) // ROWS)


@inner
@no_type_check
def _add_some(
    tiles, anew, block, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums, count, following
):  # fmt: skip  # pragma: no cover
    """One or two turns, which wait for memory: both read what the block has next."""
    turns, step_bytes, end = (count + ROWS - 1) // ROWS, ROWS * row_bytes, block + row_bytes * pairs
    size = (count + turns - 1) // turns  # as even as can be: to hold other sizes takes time
    steps_ahead, most = (AHEAD, pairs) if turns == 1 else (AHEAD_OF_TWO, AHEAD_OF_TWO)
    begin, ahead, rows, lines = 0, 0, 0, 0
    while begin < pairs:
        steps, own = min(_steps(pairs, begin), most), block + row_bytes * begin
        later = own + steps_ahead * step_bytes
        of_block = (end - later) // step_bytes
        if following == 0:
            rows, lines = 0, 0
        elif of_block > 0:
            steps, rows, lines, ahead = min(steps, of_block), ROWS // turns, 0, later
        else:  # what isn't of this block may not be there
            rows, lines, ahead = 0, LINES // turns, following + max(0, later - end)
        for first in range(0, count, size):
            some = min(size, count - first)
            hold(tiles, some, some, min(ROWS, pairs - begin))
            dot_1(
                anew, own, row_bytes, half_bytes, vectors + vector_bytes * first + 4 * begin,
                vector_bytes, steps, sums + SUM_BYTES * first, ahead, rows, lines
            )  # fmt: skip
            ahead += (row_bytes * rows + 64 * lines) * steps
        begin += ROWS * steps
        anew = False


@inner
@no_type_check
def _add_many(
    tiles, anew, block, row_bytes, half_bytes, vectors, vector_bytes, pairs, sums, count, following
):  # fmt: skip  # pragma: no cover
    """Turns of two registers of vectors, each of which has a part of `following` read."""
    turns = (count + 2 * ROWS - 1) // (2 * ROWS)
    lines = 0 if following == 0 else (LINES + 2 * turns - 1) // (2 * turns)
    begin, ahead = 0, following
    while begin < pairs:
        steps, own = min(_steps(pairs, begin), MOST_STEPS), block + row_bytes * begin
        some = min(ROWS, pairs - begin)
        for first in range(0, count, 2 * ROWS):
            left = min(count - first, 2 * ROWS)
            given, into = vectors + vector_bytes * first + 4 * begin, sums + SUM_BYTES * first
            if left <= ROWS:
                hold(tiles, left, left, some)
                dot_1(
                    anew, own, row_bytes, half_bytes, given, vector_bytes, steps, into, 0, 0, 0
                )  # fmt: skip
                continue
            hold(tiles, ROWS, left - ROWS, some)
            for half in range(2):
                dot_2(
                    anew, own + half_bytes * half, row_bytes, 0, given, vector_bytes, steps,
                    into + 8 * ROWS * half, ahead, 0, lines
                )  # fmt: skip
                ahead += 64 * lines * steps
        begin += ROWS * steps
        anew = False


@inner
@no_type_check
def multiply_runs(tiles, anew, runs, block, steps, sums):  # pragma: no cover
    """Adds products of `RUNS` times `ROWS` vectors to `sums: float32[RUNS * ROWS, ROWS]`.

    `runs` points to an address of `ROWS` vectors and the bytes from one to the next, for each run.
    Of the block, `[steps * ROWS, ROWS, 2]`, pairs of inputs of `ROWS` outputs stand side by side.
    It and `sums` are addresses. `anew` writes sums, whatever stood there.
    """
    hold(tiles, ROWS, ROWS, ROWS)
    dot_runs(anew, runs, block, steps, sums)
