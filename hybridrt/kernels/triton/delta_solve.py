"""What gated_delta_rule knows of a chunk without its state: the triangular system, solved."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.delta_decays import across_pairs, decay_between, log_behind, tile_of
from hybridrt.kernels.triton.launch import jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.products import add_parts, add_split, parts_of, store_parts
from hybridrt.kernels.triton.states import tokens_of


@kernel(do_not_specialize=["first_row"])
@no_type_check
def solve_chunks(
    k,  # [tokens, key_heads, KEY_DIM]
    g,  # [tokens, heads], where not PER_CHANNEL
    beta,  # [tokens, heads]
    overlaps,  # [slots, heads, 2 * HALF, 2 * HALF] of `weigh_chunks`, where PER_CHANNEL
    readers,  # [slots, key_heads, parts, 2 * HALF, KEY_ROOM], where not PER_CHANNEL
    solved,  # [slots, heads, parts, 2 * HALF, 2 * HALF]
    from_start,  # [slots, heads, 2 * HALF], where not PER_CHANNEL
    to_end,  # the same
    whole,  # [slots, heads], where not PER_CHANNEL
    cu_seqlens,  # [rows + 1]
    k_token,
    k_head,
    k_dim,
    g_token,
    g_head,
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
    `from_start` and `to_end` are factors of their tokens; with one a channel, `weigh_chunks` has
    made both, and `whole`. Of tokens behind the last of a row, which a chunk's slot has room for,
    keys are zeros, and so is what they correct.

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
            store_parts(place, key, i, c, KEY_ROOM, 2 * HALF)
            store_parts(place, key_u, HALF + i, c, KEY_ROOM, 2 * HALF)
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
        if PER_CHANNEL:
            place = overlaps + at * 4 * HALF * HALF + (i * 2 * HALF)[:, None] + i[None, :]
            # Above the diagonal stands whatever stood in that memory before.
            is_earlier = i[None, :] < i[:, None]
            of_first = tl.where(is_earlier, tl.load(place), 0.0)
            of_second = tl.where(is_earlier, tl.load(place + 2 * HALF * HALF + HALF), 0.0)
            across = tl.load(place + 2 * HALF * HALF)
        else:
            of_first, of_second, across = _weigh(
                *(alike, alike_u, alike_across, g + head * g_head, g_token, t, stop),
                *(from_start + at * 2 * HALF, to_end + at * 2 * HALF, whole + at, HALF),
            )
        inverse, inverse_u = _inverses(
            *(of_first * strength[:, None], of_second * strength_u[:, None]),
            *(i, none, HALF, SIDES),
        )
        across = add_split(inverse_u, across * strength_u[:, None], none, SIDES)
        across = -add_split(across, inverse, none, SIDES)
        matrix = solved + at * PARTS * 4 * HALF * HALF
        store_parts(matrix, inverse * strength[None, :], i, i, 2 * HALF, 2 * HALF)
        store_parts(matrix, none, i, HALF + i, 2 * HALF, 2 * HALF)
        store_parts(matrix, across * strength[None, :], HALF + i, i, 2 * HALF, 2 * HALF)
        store_parts(matrix, inverse_u * strength_u[None, :], HALF + i, HALF + i, 2 * HALF, 2 * HALF)


@jit
@no_type_check
def _tokens(part, t, stop, t_stride, c, c_stride, SIZE: tl.constexpr):
    """Some channels of some tokens in float32; zeros behind the last of either."""
    return tile_of(part, t, stop, t_stride, c.to(tl.int64), c_stride, SIZE).to(tl.float32)


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
def _inverses(a, b, i, none, BLOCK_T: tl.constexpr, SIDES: tl.constexpr):
    """Of two triangular matrices with ones on the diagonal, of which only what is below counts."""
    joins = across_pairs(i, 1)
    one = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    inverse_a, inverse_b = one - tl.where(joins, a, 0.0), one - tl.where(joins, b, 0.0)
    half = 2
    while half < BLOCK_T:
        joins = across_pairs(i, half)
        of_a = add_split(inverse_a, tl.where(joins, a, 0.0), none, SIDES)
        of_b = add_split(inverse_b, tl.where(joins, b, 0.0), none, SIDES)
        inverse_a -= add_split(of_a, inverse_a, none, SIDES)
        inverse_b -= add_split(of_b, inverse_b, none, SIDES)
        half *= 2
    return inverse_a, inverse_b
