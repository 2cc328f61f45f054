"""ssd of long rows by AMX: its matrix form, `CHUNK` tokens of a head at a time."""

from typing import no_type_check

from hybridrt.kernels.cpu.bfloat16 import as_element, elements, singles
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.share import share, sharing_kernel
from hybridrt.kernels.cpu.ssd_chunk import (
    CHUNK,
    Inputs,
    Sizes,
    advance,
    lay_group,
    make_room,
    turn_state,
)
from hybridrt.kernels.cpu.state_rows import begin_state, row_starts, starts, targets
from hybridrt.kernels.cpu.tile_registers import release_tiles, take_tiles
from hybridrt.kernels.cpu.tiny_numbers import take_as_before, take_as_zero
from hybridrt.kernels.cpu.vectors import aligned, pointer

FEWEST = 32
"""Tokens of a row from which on a chunk, always a whole one, takes less time than their steps."""


@inner
@no_type_check
def end_of_chunks(tokens, first, last):  # pragma: no cover
    """The row behind the last one that is worth chunks, of some that go on with each other.

    `first` where none is. Those before it are chunks too, as a state goes from one to the next.
    """
    while last > first and tokens[last] - tokens[last - 1] < FEWEST:
        last -= 1
    return last


@inner
@no_type_check
def _take_chunks(
    worker, workers, given, sizes, rows, state_like, states, y
):  # fmt: skip  # pragma: no cover
    """A worker's share of heads of all rows that are worth it, one row after the other."""
    tokens, begins, size = starts(rows), row_starts(rows), sizes.head_dim * sizes.state_size
    begin, end = sizes.heads * worker // workers, sizes.heads * (worker + 1) // workers
    room, kept, tiles = make_room(sizes), aligned(size * (end - begin)), 0
    one = aligned(size)
    before = take_as_zero()  # decays get below 1e-38
    for run in range(len(begins) - 1):
        first = begins[run]
        last = end_of_chunks(tokens, first, begins[run + 1])
        if first == last:
            continue
        if tiles == 0:
            tiles = take_tiles(True)
        for row in range(first, last):
            for head in range(begin, end):
                h = kept[(head - begin) * size :]
                _begin(sizes, rows, row, state_like, states, head, one, h)
            for t in range(tokens[row], tokens[row + 1], CHUNK):
                some, group = min(CHUNK, tokens[row + 1] - t), -1
                for head in range(begin, end):
                    if head // (sizes.heads // sizes.groups) != group:
                        group = head // (sizes.heads // sizes.groups)
                        lay_group(tiles, given, sizes, room, t, some, group)
                    h = kept.ctypes.data + 4 * size * (head - begin)
                    advance(tiles, given, sizes, room, t, some, head, h, y)
            for head in range(begin, end):
                h = kept[(head - begin) * size :]
                _end(sizes, rows, row, state_like, states, head, one, h)
    take_as_before(before)
    release_tiles(tiles)


@inner
@no_type_check
def _begin(sizes, rows, row, state_like, states, head, one, h):  # pragma: no cover
    """Writes a head's state of a row's begin as chunks need it."""
    size, item = sizes.head_dim * sizes.state_size, state_like.itemsize
    place = states + item * (targets(rows)[row] * rows.stride + head * size)
    given = singles(place, size) if item == 4 else one
    begin_state(given, rows, row, states, state_like, head, size)
    turn_state(sizes, pointer(given), pointer(h), False)


@inner
@no_type_check
def _end(sizes, rows, row, state_like, states, head, one, h):  # pragma: no cover
    """Writes a head's state of a row's end to its page."""
    size, item = sizes.head_dim * sizes.state_size, state_like.itemsize
    place = states + item * (targets(rows)[row] * rows.stride + head * size)
    turn_state(sizes, pointer(singles(place, size) if item == 4 else one), pointer(h), True)
    if item != 4:
        page = elements(place, size, state_like)
        for n in range(size):
            page[n] = as_element(one[n], state_like)


@sharing_kernel
@no_type_check
def scan_chunks(
    x, x_stride, dt, A, B, b_stride, C, c_stride, D, rows, state_like, states, y, heads, head_dim,
    groups, state_size, threads
):  # fmt: skip  # pragma: no cover
    """All rows that are worth chunks: a kernel of its own, which no other processor compiles."""
    given = Inputs(x, x_stride, dt, A, B, b_stride, C, c_stride, D)
    sizes = Sizes(heads, head_dim, groups, state_size)
    share(_take_chunks, threads, (given, sizes, rows, state_like, states, y))
