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
from hybridrt.kernels.triton.launch import jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.products import add_parts, add_split, parts_of
from hybridrt.kernels.triton.states import tokens_of


@kernel(do_not_specialize=["first_row"])
@no_type_check
def solve_chunks(
    q,  # [tokens, key_heads, KEY_DIM]
    k,  # [tokens, key_heads, KEY_DIM]
    g,  # [tokens, heads], or with KEY_DIM behind
    beta,  # [tokens, heads]
    readers,  # [slots, key_heads, parts, 2 * HALF, KEY_ROOM], or of heads where PER_CHANNEL
    writers,  # as readers, where PER_CHANNEL
    solved,  # [slots, heads, parts, 2 * HALF, 2 * HALF]
    from_start,  # [slots, heads, 2 * HALF], where not PER_CHANNEL
    to_end,  # [slots, heads, 2 * HALF], where not PER_CHANNEL
    whole,  # [slots, heads], or with KEY_ROOM behind
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
    first_row,
    REPEATS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_ROOM: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    SIDES: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HALF: tl.constexpr,
):
    """What the corrections of a chunk are made of, for all heads of a key head.

    What token i corrects, `delta_i = beta_i (v_i - S^T k_i)`, depends on the corrections before
    it in its chunk (arXiv 2412.06464, section 3.3). Solved for all of a chunk,
    `delta = solved @ (v - readers @ S)` with S the state before the chunk, and the state behind it
    is `whole * S + writers^T @ delta`. With one decay a head, keys read and write, and
    `from_start` and `to_end` are factors of their tokens. Of tokens behind the last of a row, which
    a chunk's slot has room for, keys are zeros, and so is what they correct.

    The inverse of a triangular matrix is put together from those of the blocks on its diagonal,
    of 1, 2, 4, ... tokens. If keys have length 1, no number on the way is larger than 2, while
    powers of the matrix outgrow float32's digits where keys are alike. The two halves of a chunk
    are tensors of their own, so that no product has the zeros above the diagonal. Sides of products
    are taken as `parts_of` SIDES. For values of float32 that is float64: where keys are alike and
    beta is 2, each token mirrors the state, and what overlaps have lost is lost as often.
    """
    wait_for_earlier()
    row, group = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    first = start + tl.program_id(0) * 2 * HALF
    if first >= stop:
        return
    i = tl.arange(0, HALF)
    t = first + i
    u = t + HALF
    q += group * q_head
    k += group * k_head
    slot = (start // (2 * HALF) + row + tl.program_id(0)) * tl.num_programs(1) + group
    PARTS: tl.constexpr = 2 if tl.float16 == SIDES else 1
    SUMS: tl.constexpr = tl.float64 if tl.float64 == SIDES else tl.float32
    # Of the first half, of the second, and of the second with the first.
    none = tl.zeros([HALF, HALF], SUMS)
    alike, alike_u, alike_across = none, none, none
    if not PER_CHANNEL:
        place = readers + slot * PARTS * 2 * HALF * KEY_ROOM
        for channel in range(0, KEY_ROOM, BLOCK_K):
            c = channel + tl.arange(0, BLOCK_K)
            key = _tokens(k, t, stop, k_token, c, k_dim, KEY_DIM)
            key_u = _tokens(k, u, stop, k_token, c, k_dim, KEY_DIM)
            _store(place, key, i, c, KEY_ROOM, 2 * HALF)
            _store(place, key_u, HALF + i, c, KEY_ROOM, 2 * HALF)
            key, low = parts_of(key, SIDES)
            key_u, low_u = parts_of(key_u, SIDES)
            early, early_low = tl.trans(key), tl.trans(low)
            alike = add_parts(key, low, early, early_low, alike)
            alike_across = add_parts(key_u, low_u, early, early_low, alike_across)
            early, early_low = tl.trans(key_u), tl.trans(low_u)
            alike_u = add_parts(key_u, low_u, early, early_low, alike_u)
    for repeat in range(REPEATS):
        head = group * REPEATS + repeat
        at = slot * REPEATS + repeat
        strength = tl.load(beta + head * b_head + t * b_token, mask=t < stop, other=0.0)
        strength_u = tl.load(beta + head * b_head + u * b_token, mask=u < stop, other=0.0)
        strength, strength_u = strength.to(tl.float32), strength_u.to(tl.float32)
        logs_of = g + head * g_head
        if PER_CHANNEL:
            keys = at * PARTS * 2 * HALF * KEY_ROOM
            overlaps, overlaps_u, across = _weigh_channels(
                *(q, k, logs_of, readers + keys, writers + keys, whole + at * KEY_ROOM),
                *(seen + at * 4 * HALF * HALF, t, stop, q_token, q_dim, k_token, k_dim),
                *(g_token, g_dim, none, KEY_DIM, KEY_ROOM, SIDES, BLOCK_K, HALF),
            )
        else:
            overlaps, overlaps_u, across = _weigh(
                *(alike, alike_u, alike_across, logs_of, g_token, t, stop),
                *(from_start + at * 2 * HALF, to_end + at * 2 * HALF, whole + at, HALF),
            )
        inverse, inverse_u = _inverses(
            *(overlaps * strength[:, None], overlaps_u * strength_u[:, None]),
            *(i, none, HALF, SIDES),
        )
        across = add_split(inverse_u, across * strength_u[:, None], none, SIDES)
        across = -add_split(across, inverse, none, SIDES)
        matrix = solved + at * PARTS * 4 * HALF * HALF
        _store(matrix, inverse * strength[None, :], i, i, 2 * HALF, 2 * HALF)
        _store(matrix, none, i, HALF + i, 2 * HALF, 2 * HALF)
        _store(matrix, across * strength[None, :], HALF + i, i, 2 * HALF, 2 * HALF)
        _store(matrix, inverse_u * strength_u[None, :], HALF + i, HALF + i, 2 * HALF, 2 * HALF)


@jit
@no_type_check
def _tokens(part, t, stop, t_stride, c, c_stride, SIZE: tl.constexpr):
    """Some channels of some tokens in float32; zeros behind the last of either."""
    return tile_of(part, t, stop, t_stride, c.to(tl.int64), c_stride, SIZE).to(tl.float32)


@jit
@no_type_check
def _store(place, tile, i, c, ROOM: tl.constexpr, TOKENS: tl.constexpr):
    """Some channels of some tokens of a chunk, in parts."""
    at = place + (i * ROOM)[:, None] + c[None, :]
    dtype: tl.constexpr = place.dtype.element_ty
    tile, low = parts_of(tile, dtype)
    tl.store(at, tile)
    if dtype == tl.float16:
        tl.store(at + TOKENS * ROOM, low)


@jit
@no_type_check
def _weigh(
    alike, alike_u, across, g, g_token, t, stop, from_start, to_end, whole, HALF: tl.constexpr
):
    """With a decay a head: overlaps of keys times what is left of one at the other."""
    i = tl.arange(0, HALF)
    u = t + HALF
    logs = tl.load(g + t * g_token, mask=t < stop, other=0.0).to(tl.float32)
    logs_u = tl.load(g + u * g_token, mask=u < stop, other=0.0).to(tl.float32)
    up_to, up_to_u = tl.cumsum(logs, 0), tl.cumsum(logs_u, 0)
    behind, behind_u = log_behind(logs, i), log_behind(logs_u, i)
    total, total_u = tl.sum(logs, 0), tl.sum(logs_u, 0)
    tl.store(from_start + i, tl.exp(up_to))
    tl.store(from_start + HALF + i, tl.exp(total + up_to_u))
    tl.store(to_end + i, tl.exp(behind + total_u))
    tl.store(to_end + HALF + i, tl.exp(behind_u))
    tl.store(whole, tl.exp(total + total_u))
    across *= tl.exp(up_to_u)[:, None] * tl.exp(behind)[None, :]
    return alike * decay_between(logs, i), alike_u * decay_between(logs_u, i), across


@jit
@no_type_check
def _weigh_channels(
    q,
    k,
    g,
    readers,
    writers,
    whole,
    seen,
    t,
    stop,
    q_token,
    q_dim,
    k_token,
    k_dim,
    g_token,
    g_dim,
    none,
    KEY_DIM: tl.constexpr,
    KEY_ROOM: tl.constexpr,
    SIDES: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HALF: tl.constexpr,
):
    """With a decay a channel: overlaps of keys, and with queries, and keys with their decays."""
    i = tl.arange(0, HALF)
    u = t + HALF
    overlaps, overlaps_u, across = none, none, none
    scores, scores_u, scores_across = none, none, none
    for channel in range(0, KEY_ROOM, BLOCK_K):
        c = channel + tl.arange(0, BLOCK_K)
        query = _tokens(q, t, stop, q_token, c, q_dim, KEY_DIM)
        query_u = _tokens(q, u, stop, q_token, c, q_dim, KEY_DIM)
        key = _tokens(k, t, stop, k_token, c, k_dim, KEY_DIM)
        key_u = _tokens(k, u, stop, k_token, c, k_dim, KEY_DIM)
        logs = _tokens(g, t, stop, g_token, c, g_dim, KEY_DIM)
        logs_u = _tokens(g, u, stop, g_token, c, g_dim, KEY_DIM)
        scores, overlaps = _add_by_halves(query, key, logs, scores, overlaps, i, none, HALF, SIDES)
        scores_u, overlaps_u = _add_by_halves(
            query_u, key_u, logs_u, scores_u, overlaps_u, i, none, HALF, SIDES
        )
        behind, up_to = log_behind(logs, i), log_up_to(logs_u, i)
        early, late = tl.trans(key * tl.exp(behind)), tl.exp(up_to)
        across = add_split(key_u * late, early, across, SIDES)
        scores_across = add_split(query_u * late, early, scores_across, SIDES)
        total, total_u = tl.sum(logs, 0), tl.sum(logs_u, 0)
        tl.store(whole + c, tl.exp(total + total_u))
        _store(readers, key * tl.exp(log_up_to(logs, i)), i, c, KEY_ROOM, 2 * HALF)
        _store(readers, key_u * tl.exp(up_to + total[None, :]), HALF + i, c, KEY_ROOM, 2 * HALF)
        _store(writers, key * tl.exp(behind + total_u[None, :]), i, c, KEY_ROOM, 2 * HALF)
        _store(writers, key_u * tl.exp(log_behind(logs_u, i)), HALF + i, c, KEY_ROOM, 2 * HALF)
    at = (i * 2 * HALF)[:, None] + i[None, :]
    tl.store(seen + at, scores)
    tl.store(seen + 2 * HALF * HALF + at, scores_across)
    tl.store(seen + 2 * HALF * HALF + HALF + at, scores_u)
    return overlaps, overlaps_u, across


@jit
@no_type_check
def _add_by_halves(
    query,
    key,
    logs,
    scores,
    overlaps,
    i,
    none,
    BLOCK_T: tl.constexpr,
    SIDES: tl.constexpr,
):
    """Answers to queries and to keys, with a decay for each channel; see `decay_to_middle`."""
    of_itself = tl.sum(query * key, 1)
    scores += tl.where(i[:, None] == i[None, :], of_itself[:, None], 0.0)
    half = 1
    while half < BLOCK_T:
        is_late = (i // half) % 2 == 1
        decay = decay_to_middle(logs, is_late, i, half)
        early = tl.trans(key * decay)
        answer = add_split(query * decay, early, none, SIDES)
        overlap = add_split(key * decay, early, none, SIDES)
        scores += tl.where(_joins(i, half), answer, 0.0)
        overlaps += tl.where(_joins(i, half), overlap, 0.0)
        half *= 2
    return scores, overlaps


@jit
@no_type_check
def _inverses(a, b, i, none, BLOCK_T: tl.constexpr, SIDES: tl.constexpr):
    """Of two triangular matrices with ones on the diagonal, of which only what is below counts."""
    joins = _joins(i, 1)
    one = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    inverse_a, inverse_b = one - tl.where(joins, a, 0.0), one - tl.where(joins, b, 0.0)
    half = 2
    while half < BLOCK_T:
        joins = _joins(i, half)
        of_a = add_split(inverse_a, tl.where(joins, a, 0.0), none, SIDES)
        of_b = add_split(inverse_b, tl.where(joins, b, 0.0), none, SIDES)
        inverse_a -= add_split(of_a, inverse_a, none, SIDES)
        inverse_b -= add_split(of_b, inverse_b, none, SIDES)
        half *= 2
    return inverse_a, inverse_b


@jit
@no_type_check
def _joins(i, half):
    """Where a token of the second block of a pair meets one of the first, `[i, j]`.

    By bits, as a division takes a GPU many steps.
    """
    is_pair = (i[:, None] ^ i[None, :]) & -half == half
    return is_pair & ((i & half) != 0)[:, None]
