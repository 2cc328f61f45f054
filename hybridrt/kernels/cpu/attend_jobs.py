"""Jobs of `attend`: pieces of sequences, and where their tokens lie.

How a sequence is cut depends on its own length alone: a result doesn't depend on who else is in the
batch, or on the threads.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from hybridrt.kernels.cpu.attend_tile import TILE, first_seen
from hybridrt.kernels.cpu.jit import argument, inner

PIECE = 512  # tokens: to begin and to join a piece costs what some dozens of tokens do
MOST = 4 * PIECE  # tokens at most
PIECES = 8  # of a long sequence, if they aren't longer than that
MORE = TILE + 16  # places behind them: of later tokens that are read ahead, and several at once
ASKED = MOST + MORE  # where places stand that are asked for, if not one behind another
GRAIN = 16  # tokens: pieces begin with whole ones, as pages do
HEADS = 16  # query heads of a key head at once
FEWEST = 4  # of them at least: what is read for them is widened once
SHARES = 2  # jobs of a thread at least, if there are so many: then threads end together


@argument
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
    """Pieces of each row; and, counted over rows, jobs, and what pieces leave to be joined.

    A job has so many `kv_heads`, or fewer if it is a piece's last, or one of so many `parts` of a
    key head's query heads.
    """

    pieces: np.ndarray
    jobs: np.ndarray
    apart: np.ndarray
    kv_heads: int
    parts: int


class Places(NamedTuple):
    """Where a piece's tokens begin in pages."""

    k: np.ndarray
    more: np.ndarray
    v: np.ndarray


class Job(NamedTuple):
    """A piece of a row, and `heads` query heads of some `kv_heads` from `head` on.

    The piece has so many `tokens`, from the `first` place of its row's pages on.
    """

    row: int
    piece: int
    head: int
    heads: int
    kv_heads: int
    first: int
    tokens: int


@inner
@no_type_check
def jobs_of(kv_heads, sizes):  # pragma: no cover  (compiled, as all below)
    """Jobs that a piece's key heads make, so many in each."""
    return (sizes.kv_heads + kv_heads - 1) // kv_heads


@inner
@no_type_check
def plan_jobs(positions, rows, heads, sizes, most_kv_heads, threads):  # pragma: no cover
    """Cuts the tokens that each row sees into pieces, and those into jobs.

    A job has up to `most_kv_heads`, which lie one behind another in a page: memory is read in its
    order. Where too few of them are there for all threads to end together, query heads are shared
    out. Heads are counted apart, so threads don't change a result.
    """
    group = heads // sizes.kv_heads
    parts = (group + HEADS - 1) // HEADS
    # One piece of one head would leave other threads alone.
    least = PIECE if sizes.kv_heads * parts > 1 else PIECE // 2
    pieces, all_pieces = np.empty(rows, np.int64), 0
    jobs, apart = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
    for row in range(rows):
        seen = positions[row] + 1 - first_seen(positions[row], sizes.window, sizes.chunked)
        longest = min(max((seen + PIECES - 1) // PIECES, least), MOST)
        pieces[row] = (seen + longest - 1) // longest
        all_pieces += pieces[row]
    found = max(all_pieces * sizes.kv_heads, 1)
    if found % threads > 0 and found < SHARES * threads:
        parts = max(parts, min(max(2, (threads + found - 1) // found), group // FEWEST))
    most = (group + parts - 1) // parts
    parts = (group + most - 1) // most
    kv_heads = most_kv_heads if parts == 1 else 1
    while kv_heads > 1 and all_pieces * jobs_of(kv_heads, sizes) < SHARES * threads:
        kv_heads = (kv_heads + 1) // 2
    for row in range(rows):
        jobs[row + 1] = jobs[row] + pieces[row] * jobs_of(kv_heads, sizes) * parts
        apart[row + 1] = apart[row] + (pieces[row] * heads if pieces[row] > 1 else 0)
    return Plan(pieces, jobs, apart, kv_heads, parts)


@inner
@no_type_check
def room_for_places(values_are_keys, asked):  # pragma: no cover
    """For the tokens of a piece, and so many places from `ASKED` on."""
    k, more = np.empty(ASKED + asked, np.int64), np.empty(MOST + MORE, np.int64)
    return Places(k, more, k if values_are_keys else np.empty(ASKED + asked, np.int64))


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
    """The job of that number, not before `row`, and its first head's `places`.

    Behind the last one there are no tokens.
    """
    if number >= plan.jobs[-1]:
        none = np.int64(0)
        return Job(row, none, none, none, none, none, none)
    while number >= plan.jobs[row + 1]:
        row += 1
    parts, group = plan.parts, heads // sizes.kv_heads
    most = (group + parts - 1) // parts
    # Heads of a piece by turns: their pages are neighbours.
    piece, of_piece = divmod(number - plan.jobs[row], jobs_of(plan.kv_heads, sizes) * parts)
    run, part = divmod(of_piece, parts)
    kv_head = run * plan.kv_heads
    kv_heads = min(plan.kv_heads, sizes.kv_heads - kv_head)
    head = kv_head * group + part * most
    here = kv_heads * group if parts == 1 else min(most, (kv_head + 1) * group - head)

    seen = first_seen(positions[row], sizes.window, sizes.chunked)
    length = (positions[row] + plan.pieces[row] - seen) // plan.pieces[row]
    length = (length + GRAIN - 1) // GRAIN * GRAIN
    count = min(length, positions[row] + 1 - seen - piece * length)
    first = seen % sizes.block_size + piece * length
    blocks, size = table[row * table_stride :], sizes.block_size
    k_start, v_start = kv_head * sizes.k_head, kv_head * sizes.v_head
    find(blocks, first, count, size, sizes.k_block, k_start, sizes.k_token, places.k)
    if not sizes.values_are_keys:
        find(blocks, first, count, size, sizes.v_block, v_start, sizes.v_token, places.v)
    if sizes.more > 0:
        find(blocks, first, count, size, sizes.more_block, 0, sizes.more_token, places.more)
    return Job(row, piece, head, here, kv_heads, first, count)
