"""ssd's first kernel for prefill rows: where chunks are, and how their tokens decay."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import LOG2_E, jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.states import tokens_of

LOG = tl.constexpr(0)
"""Of a token: the decay from before its block to behind it, as a logarithm to base 2."""

REST = tl.constexpr(1)
"""What float32 left out of that: large sums have no digits for small differences."""

WEIGHT = tl.constexpr(2)
"""dt, times the decay from behind the token to the end of its block."""

STEP = tl.constexpr(3)
"""dt; behind a row's last token it is zero, as are weights."""


@kernel(do_not_specialize=["num_decodes", "num_prefills"])
@no_type_check
def sum_decays(
    dt,  # [tokens, heads]
    A,  # [heads]
    cu_seqlens,  # [rows + 1]
    bounds,  # [chunks, 2]
    of_tokens,  # [chunks, heads, 4, CHUNK]
    dt_token,
    dt_head,
    A_head,
    heads,
    num_decodes,
    num_prefills,
    CHUNK: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Some heads of a block of tokens: what `LOG`, `REST`, `WEIGHT` and `STEP` say."""
    wait_for_earlier()
    BLOCKS: tl.constexpr = CHUNK // BLOCK_T
    chunk, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    row, first = _find(chunk, cu_seqlens, num_decodes, num_prefills, CHUNK, BLOCK_R)
    start, row_stop = tokens_of(row, cu_seqlens, False)
    first += start
    stop = tl.minimum(first + CHUNK, row_stop)
    tl.store(bounds + 2 * chunk, first)
    tl.store(bounds + 2 * chunk + 1, stop)
    first += block * BLOCK_T
    if first >= stop:
        return
    t = first + tl.arange(0, BLOCK_T)
    head = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)
    live = (t < stop)[:, None] & (head < heads)[None, :]
    a = tl.load(A + head * A_head, mask=head < heads, other=0.0).to(tl.float64)
    # Behind the last token dt is zero, which decays nothing.
    at = dt + (t * dt_token)[:, None] + (head * dt_head)[None, :]
    step = tl.load(at, mask=live, other=0.0).to(tl.float32)
    # In float64: a token that forgets everything takes a sum to -1,000 and beyond, where float32
    # has no digits left for the small differences between the tokens behind it.
    logs = step.to(tl.float64) * (a * LOG2_E)[None, :]
    exact = tl.cumsum(logs, 0)
    log = exact.to(tl.float32)
    rest = (exact - log.to(tl.float64)).to(tl.float32)
    to_end = tl.exp2((tl.sum(logs, 0)[None, :] - exact).to(tl.float32))
    place = block * BLOCK_T + tl.arange(0, BLOCK_T)
    at = of_tokens + ((chunk.to(tl.int64) * heads + head) * (4 * CHUNK))[None, :] + place[:, None]
    fits = (head < heads)[None, :]
    tl.store(at + LOG * CHUNK, log, mask=fits)
    tl.store(at + REST * CHUNK, rest, mask=fits)
    tl.store(at + WEIGHT * CHUNK, to_end * step, mask=fits)
    tl.store(at + STEP * CHUNK, step, mask=fits)


@jit
@no_type_check
def chunk_of(start, row, num_decodes, CHUNK: tl.constexpr):
    """The place of a prefill row's first chunk among those of all.

    As far behind that of the row before it as that one has chunks, or one further: so it
    follows from where the row starts.
    """
    return (start - num_decodes) // CHUNK + (row - num_decodes)


@jit
@no_type_check
def _find(chunk, cu_seqlens, num_decodes, num_prefills, CHUNK: tl.constexpr, BLOCK_R: tl.constexpr):
    """A chunk's row, and its first token, counted from the row's."""
    before, chunk_before = 0, 0
    for first in range(0, num_prefills, BLOCK_R):
        i = first + tl.arange(0, BLOCK_R)
        there = i < num_prefills
        row = num_decodes + i
        start = tl.load(cu_seqlens + row, mask=there, other=num_decodes)
        at = chunk_of(start, row, num_decodes, CHUNK)
        there = there & (at <= chunk)
        before += tl.sum(tl.where(there, 1, 0), 0)
        chunk_before = tl.maximum(chunk_before, tl.max(tl.where(there, at, 0), 0))
    return (num_decodes + before - 1).to(tl.int64), (chunk - chunk_before) * CHUNK
