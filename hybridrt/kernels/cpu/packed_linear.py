"""The product of a weight in blocks, oneDNN's or our own, with some tokens, in numba.

oneDNN's own product reads it more slowly than memory allows on some processors.
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.atomics import claim
from hybridrt.kernels.cpu.bfloat16 import halves, singles, widen
from hybridrt.kernels.cpu.jit import (
    ALONE,
    FIRST,
    apart,
    calls,
    inner,
)
from hybridrt.kernels.cpu.packed_dot import (
    MOST_IN_HALVES,
    MOST_VECTORS,
    OUTPUTS,
    make_packed_dot,
    room_for_inputs,
    widen_block,
)
from hybridrt.kernels.cpu.pairs import BY_PAIRS
from hybridrt.kernels.cpu.share import parallel_kernel, share
from hybridrt.kernels.cpu.streams import end_streams, stream, streams
from hybridrt.kernels.cpu.tile_registers import multiplies_tiles, release_tiles, take_tiles
from hybridrt.kernels.cpu.tile_square import is_square, multiply_square
from hybridrt.kernels.cpu.tiles import add_by_tiles
from hybridrt.kernels.cpu.vectors import (
    HAS_REGISTERS,
    IS_ZEN_4,
    LANES,
    LINE,
    PAGE,
    PAGES,
    READS_PAGES,
    aligned,
    load,
    pointer,
    store,
    store_some,
)

AT_ONCE = 256  # tokens: what they have and their sums stay in the second cache
AHEAD = PAGES * PAGE if READS_PAGES else (512 if IS_ZEN_4 else 4096) if HAS_REGISTERS else 1024
"""Bytes from beginning to read to using, where pairs are used once; as measured on each."""

PAIRS = 64  # of a block at a time, where they are used again and again: 16 KiB
FEW_PAIRS = 32  # where they are used twice and wait for memory, or widened and take twice the room
FEWEST_WIDENED = (1000 if BY_PAIRS else 3) if HAS_REGISTERS else 6
"""Turns from which on a block's weights are widened once for all of them. In fewer each widens what
it needs: that takes no longer than writing it down, and leaves more of the nearest cache to what
comes from memory."""

MOST_DIRECT = MOST_IN_HALVES if HAS_REGISTERS else 1
"""Tokens whose products read a block as it comes from memory. With AVX2, of more, outputs take
turns, which would read lines that aren't neighbours. (With AVX-512 halves of the outputs take turns
at some pairs, which have been asked for in order by then.)"""

LINES = 4 * OUTPUTS // LINE  # of a pair for all outputs of a block
PART = LINES // 2 if HAS_REGISTERS else LINES  # places where one of few turns begins to read
SMALL = 2**18  # weights: beyond it another thread is worth waking
FEWEST_SHARED = 192  # tokens of a worker: of fewer, a weight takes long to read for each
FEW = 8  # tokens whose products take about as long as reading a weight from memory
FEWEST_CLAIMED = 16  # tokens; of fewer, and with AMX, memory decides, which is read in a row

ANY_NUMBER = 2**31


def most_tokens() -> int:
    """Of so many our products take less time than oneDNN's: by pairs of few, elsewhere of any."""
    return 128 if BY_PAIRS and not multiplies_tiles() else ANY_NUMBER


def is_small(tokens: int, outputs: int, inputs: int) -> bool:
    """Whether one thread is done with a product before it would have waked another one."""
    return outputs * inputs * (tokens + FEW) <= SMALL * (1 + FEW)


def packed_linear(
    x: BFloat16[Tensor, "*batch inputs"],
    address: int,
    width: int,
    block_bytes: int,
    bias: BFloat16[Tensor, " outputs"] | None,
    outputs: int,
) -> BFloat16[Tensor, "*batch outputs"]:
    """`x W^T + b`, summed in float32, with the weight's blocks of `width` outputs at an address.

    They are `OUTPUTS` wide; by AMX it takes halves of these, too.
    """
    *batch, inputs = x.shape
    x, out = x.contiguous(), torch.empty(*batch, outputs, dtype=x.dtype)
    tokens = x.numel() // inputs
    bias = None if bias is None else bias.contiguous()
    at_bias = 0 if bias is None else bias.data_ptr()
    places = (x.data_ptr(), address, width, block_bytes, at_bias, out.data_ptr())
    sizes = tokens, outputs, inputs
    args = (multiplies_tiles(), *places, *sizes)
    if not tokens:
        return out
    if is_small(tokens, outputs, inputs):
        _multiply(1, *args)
    elif is_square(width, tokens, inputs):
        _multiply_square(numba.get_num_threads(), *places[:2], *places[3:], *sizes)
    else:
        _multiply(numba.get_num_threads(), *args)
    return out


# What no number of tokens takes isn't compiled.
_dot = make_packed_dot(range(1, MOST_DIRECT + 1), LINES)
_FEWEST_OF_SOME = (3 if BY_PAIRS else MOST_VECTORS + 1) if HAS_REGISTERS else 2
_dot_some = make_packed_dot(range(_FEWEST_OF_SOME, MOST_VECTORS + 1), PART)
_dot_more = make_packed_dot(range(4, MOST_VECTORS + 1), 1)
_dot_wide = make_packed_dot(range(4, MOST_VECTORS + 1), PART, by_pairs=False, widened=True)


@inner
@no_type_check
def _dot_few(count, room, block, vectors, vector_bytes, pairs, sums, ahead):
    # pragma: no cover  (compiled, as all below)
    """In one place, as the compiler writes all of it out wherever it stands."""
    _dot(count, room, block, vectors, vector_bytes, pairs, sums, ahead, 4 * OUTPUTS)


@inner
@no_type_check
def _dot_in_turns(room, block, vectors, vector_bytes, pairs, sums, tokens, following):
    # pragma: no cover
    """Takes some pairs at a time through all turns, while the next pairs come from memory.

    Each turn asks for its share of them, as a core can wait for some dozens of lines only: when the
    first turns asked for all, steps took longer.
    """
    turns = (tokens + MOST_VECTORS - 1) // MOST_VECTORS
    step = (4 * OUTPUTS + turns - 1) // turns
    widened = turns >= FEWEST_WIDENED
    most = FEW_PAIRS if turns == 2 or widened else PAIRS
    end_of_block = block + 4 * OUTPUTS * pairs
    wide = aligned(2 * FEW_PAIRS * OUTPUTS if widened else 0)
    for pair in range(0, pairs, most):
        some, first = min(most, pairs - pair), 0
        part = block + 4 * OUTPUTS * pair
        ahead = part + (AHEAD if READS_PAGES and not widened else 4 * OUTPUTS * some)
        if ahead >= end_of_block:
            ahead = following + ahead - end_of_block
        if widened:
            widen_block(part, some, wide.ctypes.data)
        for turn in range(turns):
            end = tokens * (turn + 1) // turns
            given = vectors + vector_bytes * first + 4 * pair
            into = sums + 4 * OUTPUTS * first
            of_turn = ahead + turn * step * some
            if widened:
                _dot_wide(
                    end - first, room, wide.ctypes.data, given, vector_bytes, some, into, of_turn,
                    step
                )  # fmt: skip
            elif BY_PAIRS and turns >= LINES:
                _dot_more(end - first, room, part, given, vector_bytes, some, into, of_turn, step)
            else:
                _dot_some(end - first, room, part, given, vector_bytes, some, into, of_turn, step)
            first = end


@inner
@no_type_check
def _add_by_vectors(
    block, vectors, vector_bytes, pairs, sums, count, following
):  # fmt: skip  # pragma: no cover
    """Adds products without AMX: of pairs, or of what they are widened to."""
    room = room_for_inputs()
    if count <= MOST_DIRECT:
        end = block + 4 * OUTPUTS * pairs
        some = pairs if following == end else max(0, pairs - AHEAD // (4 * OUTPUTS))
        _dot_few(count, room, block, vectors, vector_bytes, some, sums, block + AHEAD)
        if some < pairs:
            rest = block + 4 * OUTPUTS * some
            of_rest = vectors + 4 * some
            _dot_few(count, room, rest, of_rest, vector_bytes, pairs - some, sums, following)
    else:
        _dot_in_turns(room, block, vectors, vector_bytes, pairs, sums, count, following)


@apart
@no_type_check
def add_products(
    tiles, anew, block, vectors, vector_bytes, pairs, sums, count, following
):  # fmt: skip  # pragma: no cover
    """Adds products of a block with `count` vectors to `sums: float32[count, OUTPUTS]`.

    By `tiles` that `take_tiles` gave, if any. `anew`, if not 0, writes sums, whatever stood there.
    All others but `count` and `pairs`, of inputs, are addresses and bytes. `following` is the block
    that is needed next.
    """
    if tiles != 0:
        add_by_tiles(
            tiles, anew != 0, block, 4 * OUTPUTS, 2 * OUTPUTS, vectors, vector_bytes, pairs, sums,
            count, following
        )  # fmt: skip
    else:
        if anew:
            singles(sums, count * OUTPUTS)[:] = 0
        _add_by_vectors(block, vectors, vector_bytes, pairs, sums, count, following)


@inner
@no_type_check
def begin_sums(sums, bias, n, size, tokens):  # pragma: no cover
    """Writes what the sums of the n-th block begin with: zeros, or its biases."""
    totals = pointer(sums)
    if bias == 0:
        sums[:] = 0
        return
    added = np.zeros(OUTPUTS, np.float32)
    for i in range(size):
        added[i] = widen(halves(bias + 2 * n * OUTPUTS, size)[i])
    for r in range(0, OUTPUTS, LANES):
        begin = load(pointer(added), r)  # here, as an array is given back after it was named last
        for t in range(tokens):
            store(begin, totals, t * OUTPUTS + r)


@inner
@no_type_check
def write_results(totals, tokens, size, out, outputs, streaming):  # pragma: no cover
    """Rounds `size` of the sums that each token has in a block, to where it has `outputs`."""
    for t in range(tokens):
        result, first = pointer(halves(out + 2 * t * outputs, size)), t * OUTPUTS
        if streaming:
            for r in range(0, size, 2 * LANES):
                stream(load(totals, first + r), load(totals, first + r + LANES), result, r)
            continue
        for r in range(0, size, LANES):
            found = load(totals, first + r)
            if r + LANES <= size:
                store(found, result, r)
            else:
                store_some(found, result, r, size - r)


@inner
@no_type_check
def _multiply_blocks(
    worker, workers, claims, tiles, x, weight, width, block_bytes, bias, out, tokens, outputs,
    inputs
):  # fmt: skip  # pragma: no cover
    """A worker's share of the outputs of all tokens; or, with `claims`, what it claims of all.

    Its blocks are neighbours, since every leap to others takes a microsecond. What all of them
    need is made before the first: while it is made nothing is read.
    """
    parts = (tokens + AT_ONCE - 1) // AT_ONCE
    most = (tokens + parts - 1) // parts  # as even as can be: each part reads the weight
    sums, per_job = aligned(most * OUTPUTS), OUTPUTS // width
    totals, of_sums, registers = pointer(sums), sums.ctypes.data, take_tiles(tiles)
    blocks = (outputs + OUTPUTS - 1) // OUTPUTS
    begin, end = blocks * worker // workers, blocks * (worker + 1) // workers
    own, jobs = end - begin, (end - begin) * parts
    streaming = streams(tokens, out, 2 * outputs)
    job = next_job(claims, -1)
    while job < jobs:
        part, n = job // own * most, begin + job % own
        some = min(most, tokens - part)
        vectors = x + 2 * inputs * part
        size = min(OUTPUTS, outputs - n * OUTPUTS)
        block = weight + n * per_job * block_bytes
        anew = tiles and bias == 0
        if not anew:
            begin_sums(sums, bias, n, size, some)
        done = (inputs // 2 - 1) // PAIRS * PAIRS if claims != 0 else 0
        if done > 0:
            rest = block + 4 * OUTPUTS * done
            add_products(0, 0, block, vectors, 2 * inputs, done, of_sums, some, rest)
        # Not claimed before it has to be read: others would be done while it waits.
        later = next_job(claims, job)
        following = weight + (begin + later % own) * per_job * block_bytes
        if tiles:
            # Where the second half of the outputs isn't there, the first one is multiplied again.
            half_bytes = 2 * OUTPUTS if per_job == 1 else block_bytes if size > width else 0
            add_by_tiles(
                registers, anew, block, 4 * width, half_bytes, vectors, 2 * inputs, inputs // 2,
                of_sums, some, following
            )  # fmt: skip
        else:
            add_products(
                0, 0, block + 4 * OUTPUTS * done, vectors + 4 * done, 2 * inputs,
                inputs // 2 - done, of_sums, some, following
            )  # fmt: skip
        results = out + 2 * (part * outputs + n * OUTPUTS)
        write_results(totals, some, size, results, outputs, streaming)
        job = later
    if streaming:
        end_streams()
    release_tiles(registers)


@inner
@no_type_check
def share_of(worker, workers, claims, tiles, tokens):  # pragma: no cover
    """What a worker takes: its number, of how many that share outputs; claims; tokens from one on.

    Of many tokens each takes its own and all outputs: what it had of them is in its caches, and
    what another core has written is slow to read. Of some it claims outputs, if `claims` are where
    they can be, else 0.
    """
    if tokens >= FEWEST_SHARED * workers:
        begin, end = tokens * worker // workers, tokens * (worker + 1) // workers
        return FIRST, ALONE, FIRST, begin, end - begin
    if tokens < FEWEST_CLAIMED or workers == 1 or tiles:
        return worker, workers, FIRST, FIRST, tokens
    return FIRST, ALONE, claims, FIRST, tokens


@inner
@no_type_check
def next_job(claims, job):  # pragma: no cover
    """A worker's next job: one that it claims, or, if `claims` are 0, the one behind its last."""
    return claim(claims) if claims != 0 else np.int64(job + 1)


@inner
@no_type_check
def _multiply_share(
    worker, workers, claims, tiles, x, weight, width, block_bytes, bias, out, tokens, outputs,
    inputs
):  # fmt: skip  # pragma: no cover
    part, parts, claimed, first, some = share_of(worker, workers, claims, tiles, tokens)
    _multiply_blocks(
        part, parts, claimed, tiles, x + 2 * inputs * first, weight, width, block_bytes, bias,
        out + 2 * outputs * first, some, outputs, inputs
    )  # fmt: skip


@parallel_kernel
@calls(add_products)
@no_type_check
def _multiply(
    threads, tiles, x, weight, width, block_bytes, bias, out, tokens, outputs, inputs
):  # fmt: skip  # pragma: no cover
    claims = np.zeros(1, np.int64)
    given = tiles, x, weight, width, block_bytes, bias, out, tokens, outputs, inputs
    share(_multiply_share, threads, (claims.ctypes.data, *given))
    claims[0] = 0  # named here, as an array is given back after it was named last


@parallel_kernel
@no_type_check
def _multiply_square(threads, x, weight, block_bytes, bias, out, tokens, outputs, inputs):
    # pragma: no cover
    share(multiply_square, threads, (x, weight, block_bytes, bias, out, tokens, outputs, inputs))
