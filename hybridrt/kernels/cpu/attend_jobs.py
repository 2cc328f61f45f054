"""Jobs of `attend`: pieces of sequences, and where their tokens lie.

How a sequence is cut depends on its own length alone: a result doesn't depend on who else is in the
batch, or on the threads.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from hybridrt.kernels.cpu.attend_tile import first_seen
from hybridrt.kernels.cpu.jit import inner

PIECE = 512  # tokens at most: to join a piece costs what a few tokens do
MORE = 48  # places behind them, for those who take several tokens or begin to read later ones
GRAIN = 16  # tokens: pieces begin with whole ones, as pages do
HEADS = 16  # query heads at once: of more, threads can share a short sequence


class Sizes(NamedTuple):
    """Of a key's two parts and a value, of what pages hold, and how far back a token sees.

    `q_token` and `q_head` are strides of queries, whose numbers are side by side; `k_block`,
    `k_head` and `k_token` are those of the keys' first part. A window of 0 is none.
    `values_are_keys`: a value begins where its key does.
    """

    q_token: int
    q_head: int
    k: int
    more: int
    v: int
    kv_heads: int
    block_size: int
    k_block: int
    k_head: int
    k_token: int
    more_block: int
    more_token: int
    v_block: int
    v_head: int
    v_token: int
    window: int
    chunked: bool
    values_are_keys: bool


class Plan(NamedTuple):
    """Pieces of each row; and, counted over rows, jobs, and what pieces leave to be joined."""

    pieces: np.ndarray
    jobs: np.ndarray
    apart: np.ndarray


class Places(NamedTuple):
    """Where a piece's tokens begin in pages."""

    k: np.ndarray
    more: np.ndarray
    v: np.ndarray


class Job(NamedTuple):
    """A piece of a row, and `heads` query heads of a key head from `head` on.

    The piece has so many `tokens`, from the `first` place of its row's pages on.
    """

    row: int
    piece: int
    head: int
    heads: int
    first: int
    tokens: int


@inner
@no_type_check
def parts_of(heads, sizes):  # pragma: no cover  (compiled, as all below)
    """Jobs that share the query heads of a key head."""
    return (heads // sizes.kv_heads + HEADS - 1) // HEADS


@inner
@no_type_check
def plan_jobs(positions, rows, heads, sizes):  # pragma: no cover
    """Cuts the tokens that each row sees into pieces."""
    jobs_a_piece = sizes.kv_heads * parts_of(heads, sizes)
    longest = PIECE if jobs_a_piece > 1 else PIECE // 2  # there are two jobs soon
    pieces = np.empty(rows, np.int64)
    jobs, apart = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
    for row in range(rows):
        seen = positions[row] + 1 - first_seen(positions[row], sizes.window, sizes.chunked)
        pieces[row] = (seen + longest - 1) // longest
        jobs[row + 1] = jobs[row] + pieces[row] * jobs_a_piece
        apart[row + 1] = apart[row] + (pieces[row] * heads if pieces[row] > 1 else 0)
    return Plan(pieces, jobs, apart)


@inner
@no_type_check
def room_for_places():  # pragma: no cover
    """For the tokens of a piece."""
    return Places(
        np.empty(PIECE + MORE, np.int64), np.empty(PIECE + MORE, np.int64),
        np.empty(PIECE + MORE, np.int64)
    )  # fmt: skip


@inner
@no_type_check
def find(table, place, count, block_size, block, start, token, places):  # pragma: no cover
    """Where the tokens from `place` on begin, and `MORE` times the last one."""
    index, offset, i = place // block_size, place % block_size, 0
    while i < count:
        first = np.int64(table[index]) * block + start
        for j in range(offset, min(block_size, offset + count - i)):
            places[i] = first + j * token
            i += 1
        index += 1
        offset = 0
    places[count : count + MORE] = places[count - 1]


@inner
@no_type_check
def find_job(
    number, row, plan, heads, table, table_stride, positions, sizes, places
):  # fmt: skip  # pragma: no cover
    """The job of that number, not before `row`, and its `places`; behind the last one no tokens."""
    if number >= plan.jobs[-1]:
        return Job(row, np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0))
    while number >= plan.jobs[row + 1]:
        row += 1
    parts, group = parts_of(heads, sizes), heads // sizes.kv_heads
    most = (group + parts - 1) // parts
    # Heads of a piece by turns: their pages are neighbours.
    piece, of_piece = divmod(number - plan.jobs[row], sizes.kv_heads * parts)
    kv_head, part = divmod(of_piece, parts)
    head = kv_head * group + part * most
    here = min(most, (kv_head + 1) * group - head)

    seen = first_seen(positions[row], sizes.window, sizes.chunked)
    length = (positions[row] + plan.pieces[row] - seen) // plan.pieces[row]
    length = (length + GRAIN - 1) // GRAIN * GRAIN
    count = min(length, positions[row] + 1 - seen - piece * length)
    first = seen % sizes.block_size + piece * length
    blocks, size = table[row * table_stride :], sizes.block_size
    k_start, v_start = kv_head * sizes.k_head, kv_head * sizes.v_head
    find(blocks, first, count, size, sizes.k_block, k_start, sizes.k_token, places.k)
    find(blocks, first, count, size, sizes.v_block, v_start, sizes.v_token, places.v)
    if sizes.more > 0:
        find(blocks, first, count, size, sizes.more_block, 0, sizes.more_token, places.more)
    return Job(row, piece, head, here, first, count)
