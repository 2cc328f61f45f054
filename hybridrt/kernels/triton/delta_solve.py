"""What gated_delta_rule knows of a chunk without its state: the triangular system, solved."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.delta_decays import (
    decay_between,
    decay_to_middle,
    log_behind,
    log_up_to,
    tile_of,
)
from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.products import add_product
from hybridrt.kernels.triton.states import tokens_of


@kernel(do_not_specialize=["first_row"])
@no_type_check
def solve_chunks(
    q,  # [tokens, heads // REPEATS, KEY_DIM]
    k,  # [tokens, heads // REPEATS, KEY_DIM]
    v,  # [tokens, heads, VALUE_DIM]
    g,  # [tokens, heads], or with KEY_DIM behind
    beta,  # [tokens, heads]
    of_state,  # [slots, heads, 2 * HALF, KEY_DIM]
    of_values,  # [slots, heads, 2 * HALF, VALUE_DIM]
    to_end,  # [slots, heads, 2 * HALF], or with KEY_DIM behind, times the keys
    whole,  # [slots, heads], or with KEY_DIM behind
    seen,  # [slots, heads, 2 * HALF, 2 * HALF], where PER_CHANNEL
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
    v_token,
    v_head,
    v_dim,
    first_row,
    REPEATS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
):
    """Corrections of a chunk of a head as they depend on its values and on the state before it.

    What token i corrects, `delta_i = beta_i (v_i - S^T k_i)`, depends on the corrections before
    it in its chunk (arXiv 2412.06464, section 3.3). Solved for all of a chunk,
    `delta = of_values + of_state @ S`, with S the state before the chunk. Of tokens behind the last
    of a row, which a chunk's slot has room for, they are zeros.

    The inverse of a triangular matrix is put together from those of the blocks on its diagonal,
    of 1, 2, 4, ... tokens. If keys have length 1, no number on the way is larger than 2, while
    powers of the matrix outgrow float32's digits where keys are alike. The two halves of a chunk
    are tensors of their own, so that no product has the zeros above the diagonal.
    """
    wait_for_earlier()
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    first = start + tl.program_id(0) * 2 * HALF
    if first >= stop:
        return
    heads = tl.num_programs(1)
    i = tl.arange(0, HALF)
    t, u = first + i, first + HALF + i
    # Behind the last token q, k, v, g and beta are zeros, so nothing of a token there is seen.
    beta += head * b_head
    strength = tl.load(beta + t * b_token, mask=t < stop, other=0.0).to(tl.float32)
    strength_u = tl.load(beta + u * b_token, mask=u < stop, other=0.0).to(tl.float32)
    q += head // REPEATS * q_head
    k += head // REPEATS * k_head
    v += head * v_head
    g += head * g_head
    slot = (start // (2 * HALF) + row + tl.program_id(0)) * heads + head
    of_state += slot * 2 * HALF * KEY_DIM
    of_values += slot * 2 * HALF * VALUE_DIM
    # Of the first half, of the second, and of the second with the first.
    overlaps = tl.zeros([HALF, HALF], tl.float32)
    overlaps_u = tl.zeros([HALF, HALF], tl.float32)
    across = tl.zeros([HALF, HALF], tl.float32)
    if PER_CHANNEL:
        scores = tl.zeros([HALF, HALF], tl.float32)
        scores_u = tl.zeros([HALF, HALF], tl.float32)
        scores_across = tl.zeros([HALF, HALF], tl.float32)
        for channel in range(0, KEY_DIM, BLOCK_K):
            c = channel + tl.arange(0, BLOCK_K).to(tl.int64)
            query = tile_of(q, t, stop, q_token, c, q_dim, KEY_DIM).to(tl.float32)
            query_u = tile_of(q, u, stop, q_token, c, q_dim, KEY_DIM).to(tl.float32)
            key = tile_of(k, t, stop, k_token, c, k_dim, KEY_DIM).to(tl.float32)
            key_u = tile_of(k, u, stop, k_token, c, k_dim, KEY_DIM).to(tl.float32)
            logs = tile_of(g, t, stop, g_token, c, g_dim, KEY_DIM).to(tl.float32)
            logs_u = tile_of(g, u, stop, g_token, c, g_dim, KEY_DIM).to(tl.float32)
            scores, overlaps = _add_by_halves(query, key, logs, scores, overlaps, i, HALF)
            scores_u, overlaps_u = _add_by_halves(
                query_u, key_u, logs_u, scores_u, overlaps_u, i, HALF
            )
            early = tl.trans(key * tl.exp(log_behind(logs, i)))
            late = tl.exp(log_up_to(logs_u, i))
            across = tl.dot(key_u * late, early, across, input_precision=FLOAT32_DOT)
            scores_across = tl.dot(
                query_u * late, early, scores_across, input_precision=FLOAT32_DOT
            )
        seen += slot * 4 * HALF * HALF
        at = (i * 2 * HALF)[:, None] + i[None, :]
        tl.store(seen + at, scores)
        tl.store(seen + 2 * HALF * HALF + at, scores_across)
        tl.store(seen + 2 * HALF * HALF + HALF + at, scores_u)
    else:
        for channel in range(0, KEY_DIM, BLOCK_K):
            c = channel + tl.arange(0, BLOCK_K).to(tl.int64)
            key = tile_of(k, t, stop, k_token, c, k_dim, KEY_DIM)
            key_u = tile_of(k, u, stop, k_token, c, k_dim, KEY_DIM)
            early = tl.trans(key)
            overlaps = add_product(key, early, overlaps, 3)
            across = add_product(key_u, early, across, 3)
            overlaps_u = add_product(key_u, tl.trans(key_u), overlaps_u, 3)
        logs = tl.load(g + t * g_token, mask=t < stop, other=0.0).to(tl.float32)
        logs_u = tl.load(g + u * g_token, mask=u < stop, other=0.0).to(tl.float32)
        up_to, up_to_u = log_up_to(logs, i), log_up_to(logs_u, i)
        behind, behind_u = log_behind(logs, i), log_behind(logs_u, i)
        overlaps *= decay_between(logs, i)
        overlaps_u *= decay_between(logs_u, i)
        across *= tl.exp(up_to_u)[:, None] * tl.exp(behind)[None, :]
        total, total_u = tl.sum(logs, 0), tl.sum(logs_u, 0)
        to_end += slot * 2 * HALF
        tl.store(to_end + i, tl.exp(behind + total_u))
        tl.store(to_end + HALF + i, tl.exp(behind_u))
        tl.store(whole + slot, tl.exp(total + total_u))
    inverse, inverse_u = _inverses(
        overlaps * strength[:, None], overlaps_u * strength_u[:, None], i, HALF
    )
    across = tl.dot(inverse_u, across * strength_u[:, None], input_precision=FLOAT32_DOT)
    across = -tl.dot(across, inverse, input_precision=FLOAT32_DOT)
    inverse *= strength[None, :]
    across *= strength[None, :]
    inverse_u *= strength_u[None, :]
    none = tl.zeros([HALF, BLOCK_D], tl.float32)
    for channel in range(0, VALUE_DIM, BLOCK_D):
        c = channel + tl.arange(0, BLOCK_D).to(tl.int64)
        value = tile_of(v, t, stop, v_token, c, v_dim, VALUE_DIM)
        value_u = tile_of(v, u, stop, v_token, c, v_dim, VALUE_DIM)
        of_t = add_product(inverse, value, none, 3)
        of_u = add_product(inverse_u, value_u, add_product(across, value, none, 3), 3)
        _store(of_values, of_t, i, c, VALUE_DIM)
        _store(of_values, of_u, HALF + i, c, VALUE_DIM)
    # What the state answers is taken off.
    if PER_CHANNEL:
        to_end += slot * 2 * HALF * KEY_DIM
        inverse, across, inverse_u = -inverse, -across, -inverse_u
    else:
        inverse *= -tl.exp(up_to)[None, :]
        across *= -tl.exp(up_to)[None, :]
        inverse_u *= -tl.exp(total + up_to_u)[None, :]
    for channel in range(0, KEY_DIM, BLOCK_D):
        c = channel + tl.arange(0, BLOCK_D).to(tl.int64)
        key = tile_of(k, t, stop, k_token, c, k_dim, KEY_DIM)
        key_u = tile_of(k, u, stop, k_token, c, k_dim, KEY_DIM)
        if PER_CHANNEL:
            logs = tile_of(g, t, stop, g_token, c, g_dim, KEY_DIM).to(tl.float32)
            logs_u = tile_of(g, u, stop, g_token, c, g_dim, KEY_DIM).to(tl.float32)
            total, total_u = tl.sum(logs, 0), tl.sum(logs_u, 0)
            later = key.to(tl.float32) * tl.exp(log_behind(logs, i) + total_u[None, :])
            _store(to_end, later, i, c, KEY_DIM)
            later = key_u.to(tl.float32) * tl.exp(log_behind(logs_u, i))
            _store(to_end, later, HALF + i, c, KEY_DIM)
            tl.store(whole + slot * KEY_DIM + c, tl.exp(total + total_u), mask=c < KEY_DIM)
            key = key.to(tl.float32) * tl.exp(log_up_to(logs, i))
            key_u = key_u.to(tl.float32) * tl.exp(log_up_to(logs_u, i) + total[None, :])
        of_t = add_product(inverse, key, none, 3)
        of_u = add_product(inverse_u, key_u, add_product(across, key, none, 3), 3)
        _store(of_state, of_t, i, c, KEY_DIM)
        _store(of_state, of_u, HALF + i, c, KEY_DIM)


@jit
@no_type_check
def _store(part, tile, i, channel, SIZE: tl.constexpr):
    """Some channels of some tokens of a chunk."""
    at = (i * SIZE)[:, None] + channel[None, :]
    tl.store(part + at, tile, mask=(channel < SIZE)[None, :])


@jit
@no_type_check
def _add_by_halves(query, key, logs, scores, overlaps, i, BLOCK_T: tl.constexpr):
    """Answers to queries and to keys, with a decay for each channel; see `decay_to_middle`."""
    of_itself = tl.sum(query * key, 1)
    scores += tl.where(i[:, None] == i[None, :], of_itself[:, None], 0.0)
    half = 1
    while half < BLOCK_T:
        is_late = (i // half) % 2 == 1
        decay = decay_to_middle(logs, is_late, i, half)
        early = tl.trans(key * decay)
        answer = tl.dot(query * decay, early, input_precision=FLOAT32_DOT)
        overlap = tl.dot(key * decay, early, input_precision=FLOAT32_DOT)
        scores += tl.where(_joins(i, half), answer, 0.0)
        overlaps += tl.where(_joins(i, half), overlap, 0.0)
        half *= 2
    return scores, overlaps


@jit
@no_type_check
def _inverses(a, b, i, BLOCK_T: tl.constexpr):
    """Of two triangular matrices with ones on the diagonal, of which only what is below counts."""
    joins = _joins(i, 1)
    one = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    inverse_a, inverse_b = one - tl.where(joins, a, 0.0), one - tl.where(joins, b, 0.0)
    half = 2
    while half < BLOCK_T:
        joins = _joins(i, half)
        of_a = tl.dot(inverse_a, tl.where(joins, a, 0.0), input_precision=FLOAT32_DOT)
        of_b = tl.dot(inverse_b, tl.where(joins, b, 0.0), input_precision=FLOAT32_DOT)
        inverse_a -= tl.dot(of_a, inverse_a, input_precision=FLOAT32_DOT)
        inverse_b -= tl.dot(of_b, inverse_b, input_precision=FLOAT32_DOT)
        half *= 2
    return inverse_a, inverse_b


@jit
@no_type_check
def _joins(i, half):
    """Where a token of the second block of a pair meets one of the first, `[i, j]`."""
    is_late = (i // half) % 2 == 1
    is_pair = i[:, None] // (2 * half) == i[None, :] // (2 * half)
    return is_pair & is_late[:, None] & (is_late[None, :] == 0)
