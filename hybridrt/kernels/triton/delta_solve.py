"""What gated_delta_rule knows of a chunk without its state: the triangular system, solved."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit
from hybridrt.kernels.triton.states import tokens_of


@jit(do_not_specialize=["first_row"])
@no_type_check
def solve_chunks(
    q,  # [tokens, heads // REPEATS, KEY_DIM]
    k,  # [tokens, heads // REPEATS, KEY_DIM]
    g,  # [tokens, heads], or with KEY_DIM behind
    beta,  # [tokens, heads]
    solved,  # [tokens, heads, BLOCK_T]
    seen,  # [tokens, heads, BLOCK_T]
    cu_seqlens,  # [rows + 1]
    q_token,
    q_head,
    q_dim,
    k_token,
    k_head,
    k_dim,
    g_token,
    g_head,
    g_dim,
    b_token,
    b_head,
    m_token,
    m_head,
    first_row,
    REPEATS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Two matrices for each chunk of a head, a row of each for every token.

    What token i corrects, `delta_i = beta_i (v_i - S^T k_i)`, depends on the corrections before
    it in its chunk (arXiv 2412.06464, section 3.3). With what the state before the chunk answers
    taken off the values, `delta = solved @ values`, and queries read `seen @ delta` of it.

    The inverse of a triangular matrix is put together from those of the blocks on its diagonal,
    of 1, 2, 4, ... tokens. If keys have length 1, no number on the way is larger than 2, while
    powers of the matrix outgrow float32's digits where keys are alike.
    """
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    if tl.program_id(0) * BLOCK_T >= stop - start:
        return
    i = tl.arange(0, BLOCK_T)
    t = start + tl.program_id(0) * BLOCK_T + i
    live = t < stop
    # Behind the last token q, k, g and beta are zeros, so nothing of a token there is seen.
    strength = tl.load(beta + t * b_token + head * b_head, mask=live, other=0.0).to(tl.float32)
    q += head // REPEATS * q_head
    k += head // REPEATS * k_head
    g += head * g_head
    scores = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    overlaps = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    for channel in range(0, KEY_DIM, BLOCK_K):
        in_k = channel + tl.arange(0, BLOCK_K).to(tl.int64)
        live_k = live[:, None] & (in_k < KEY_DIM)[None, :]
        at = (t * q_token)[:, None] + (in_k * q_dim)[None, :]
        query = tl.load(q + at, mask=live_k, other=0.0)
        at = (t * k_token)[:, None] + (in_k * k_dim)[None, :]
        key = tl.load(k + at, mask=live_k, other=0.0)
        if PER_CHANNEL:
            at = (t * g_token)[:, None] + (in_k * g_dim)[None, :]
            logs = tl.load(g + at, mask=live_k, other=0.0).to(tl.float32)
            query, key = query.to(tl.float32), key.to(tl.float32)
            of_itself = tl.sum(query * key, 1)
            scores += tl.where(i[:, None] == i[None, :], of_itself[:, None], 0.0)
            half = 1
            while half < BLOCK_T:
                is_late = (i // half) % 2 == 1
                decay = _decay_to_middle(logs, is_late, i, half)
                early = tl.trans(key * decay)
                answer = tl.dot(query * decay, early, input_precision=FLOAT32_DOT)
                overlap = tl.dot(key * decay, early, input_precision=FLOAT32_DOT)
                scores += tl.where(_joins(i, half), answer, 0.0)
                overlaps += tl.where(_joins(i, half), overlap, 0.0)
                half *= 2
        else:
            scores = tl.dot(query, tl.trans(key), scores, input_precision=FLOAT32_DOT)
            overlaps = tl.dot(key, tl.trans(key), overlaps, input_precision=FLOAT32_DOT)
    if not PER_CHANNEL:
        logs = tl.load(g + t * g_token, mask=live, other=0.0).to(tl.float32)
        decay = _decay_between(logs, i)
        scores *= decay
        overlaps *= decay
    overlaps *= strength[:, None]
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    half = 1
    while half < BLOCK_T:
        between = tl.where(_joins(i, half), overlaps, 0.0)
        between = tl.dot(inverse, between, input_precision=FLOAT32_DOT)
        inverse -= tl.dot(between, inverse, input_precision=FLOAT32_DOT)
        half *= 2
    at = (t * m_token + head * m_head)[:, None] + i[None, :]
    tl.store(solved + at, inverse * strength[None, :], mask=live[:, None])
    tl.store(seen + at, scores, mask=live[:, None])


@jit
@no_type_check
def _joins(i, half):
    """Where a token of the second block of a pair meets one of the first, `[i, j]`."""
    is_late = (i // half) % 2 == 1
    is_pair = i[:, None] // (2 * half) == i[None, :] // (2 * half)
    return is_pair & is_late[:, None] & (is_late[None, :] == 0)


@jit
@no_type_check
def _decay_between(logs, i):
    """From behind token j up to token i, `[i, j]`; 0 for j > i.

    In float64, and kept with its rounding: a token that forgets everything takes a sum to
    -1,000 and beyond, where float32 has no digits left for the small differences between the
    tokens behind it.
    """
    exact = tl.cumsum(logs.to(tl.float64), 0)
    sums = exact.to(tl.float32)
    rest = (exact - sums.to(tl.float64)).to(tl.float32)
    between = (sums[:, None] - sums[None, :]) + (rest[:, None] - rest[None, :])
    return tl.where(i[:, None] >= i[None, :], tl.exp(tl.minimum(between, 0.0)), 0.0)


@jit
@no_type_check
def _decay_to_middle(logs, is_late, i, half):
    """Of each channel: to the middle of a token's pair of blocks, or from there to the token.

    No product of two matrices has a decay for each channel, but from a token of the first block
    to one of the second it splits at the middle, into parts that are at most 1. Sums begin at
    the middle, so they need no digits for what is forgotten elsewhere.
    """
    is_same = i[:, None] // half == i[None, :] // half
    is_between = tl.where(is_late[:, None], i[None, :] <= i[:, None], i[None, :] > i[:, None])
    among = tl.where(is_same & is_between, 1.0, 0.0)
    return tl.exp(tl.dot(among, logs, input_precision=FLOAT32_DOT))
