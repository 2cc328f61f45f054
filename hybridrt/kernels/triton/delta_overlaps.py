"""What the keys and queries of a chunk have in common, where each channel has a decay of its own.

No product of matrices has such decays. But from a token of one block to one of a later block they
split at any place between, into parts that are at most 1.
"""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.delta_decays import (
    across_pairs,
    decay_to_middle,
    digits_of,
    sum_of,
    tile_of,
)
from hybridrt.kernels.triton.launch import jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.products import add_parts, add_split, parts_of, store_parts
from hybridrt.kernels.triton.states import tokens_of


@kernel(do_not_specialize=["first_row"])
@no_type_check
def weigh_chunks(
    q,  # [tokens, key_heads, KEY_DIM]
    k,  # [tokens, key_heads, KEY_DIM]
    g,  # [tokens, heads, KEY_DIM]
    readers,  # [slots, heads, parts, BLOCKS * BLOCK_T, KEY_ROOM]
    writers,  # the same
    whole,  # [slots, heads, KEY_ROOM]
    overlaps,  # [slots, heads, BLOCKS * BLOCK_T, BLOCKS * BLOCK_T]
    seen,  # the same
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
    first_row,
    REPEATS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_ROOM: tl.constexpr,
    SIDES: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """A block of tokens of a chunk and a head, beside itself and the blocks before; `solve_chunks`.

    `overlaps` and `seen` have what keys and queries meet of the keys of earlier tokens, decayed on
    the way. Above the diagonal of blocks nothing is written.
    """
    wait_for_earlier()
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    chunk, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    from_chunk = start + chunk * BLOCKS * BLOCK_T
    if from_chunk >= stop:
        return
    CHUNK: tl.constexpr = BLOCKS * BLOCK_T
    SUMS: tl.constexpr = overlaps.dtype.element_ty
    PARTS: tl.constexpr = 2 if tl.float16 == SIDES else 1
    i = tl.arange(0, BLOCK_T)
    of_block = block * BLOCK_T + i
    t = from_chunk + of_block
    q += head // REPEATS * q_head
    k += head // REPEATS * k_head
    g += head * g_head
    at = (start // CHUNK + row + chunk) * tl.num_programs(1) + head
    readers += at * PARTS * CHUNK * KEY_ROOM
    writers += at * PARTS * CHUNK * KEY_ROOM
    whole += at * KEY_ROOM
    pairs = at * CHUNK * CHUNK + (of_block * CHUNK)[:, None] + i[None, :]
    none = tl.zeros([BLOCK_T, BLOCK_T], SUMS)
    is_up_to, is_behind = i[None, :] <= i[:, None], i[None, :] > i[:, None]
    score, overlap = none, none
    far_scores, far_overlaps = (none,) * (BLOCKS - 1), (none,) * (BLOCKS - 1)
    for channel in range(0, KEY_ROOM, BLOCK_K):
        c = channel + tl.arange(0, BLOCK_K)
        wide = c.to(tl.int64)
        query = tile_of(q, t, stop, q_token, wide, q_dim, KEY_DIM).to(tl.float32)
        key = tile_of(k, t, stop, k_token, wide, k_dim, KEY_DIM).to(tl.float32)
        logs = tile_of(g, t, stop, g_token, wide, g_dim, KEY_DIM).to(tl.float32)
        score += tl.where(i[:, None] == i[None, :], tl.sum(query * key, 1)[:, None], 0.0)
        digits = digits_of(logs)
        half = 1
        while half < BLOCK_T:
            decay = decay_to_middle(digits, (i & half) != 0, i, half)
            early = tl.trans(key * decay)
            are_joined = across_pairs(i, half)
            of_query = add_split(query * decay, early, none, SIDES)
            of_key = add_split(key * decay, early, none, SIDES)
            score += tl.where(are_joined, of_query, 0.0)
            overlap += tl.where(are_joined, of_key, 0.0)
            half *= 2
        up_to, behind = sum_of(digits, is_up_to), sum_of(digits, is_behind)
        decay = tl.exp(up_to)
        late, late_low = parts_of(key * decay, SIDES)
        asked, asked_low = parts_of(query * decay, SIDES)
        # Of the blocks before, the nearest first; between are those that are nearer.
        between = tl.zeros([BLOCK_K], tl.float32)
        new_scores, new_overlaps = (), ()
        for back in tl.static_range(BLOCKS - 1):
            far_score, far_overlap = far_scores[back], far_overlaps[back]
            if back < block:
                u = t - (back + 1) * BLOCK_T
                early = tile_of(k, u, stop, k_token, wide, k_dim, KEY_DIM).to(tl.float32)
                logs_u = tile_of(g, u, stop, g_token, wide, g_dim, KEY_DIM).to(tl.float32)
                left = sum_of(digits_of(logs_u), is_behind) + between[None, :]
                early, early_low = parts_of(tl.trans(early * tl.exp(left)), SIDES)
                far_score = add_parts(asked, asked_low, early, early_low, far_score)
                far_overlap = add_parts(late, late_low, early, early_low, far_overlap)
                between += tl.sum(logs_u, 0)
            new_scores += (far_score,)
            new_overlaps += (far_overlap,)
        far_scores, far_overlaps = new_scores, new_overlaps
        after = _sum_behind(
            g, from_chunk, block + 1, stop, g_token, g_dim, c, KEY_DIM, BLOCK_K, BLOCK_T, BLOCKS
        )
        store_parts(readers, key * tl.exp(up_to + between[None, :]), of_block, c, KEY_ROOM, CHUNK)
        store_parts(writers, key * tl.exp(behind + after[None, :]), of_block, c, KEY_ROOM, CHUNK)
        if block == 0:
            tl.store(whole + c, tl.exp(tl.sum(logs, 0) + after))
    pairs += block * BLOCK_T
    tl.store(seen + pairs, score.to(tl.float32))
    tl.store(overlaps + pairs, overlap)
    for back in tl.static_range(BLOCKS - 1):
        if back < block:
            pairs -= BLOCK_T
            tl.store(seen + pairs, far_scores[back].to(tl.float32))
            tl.store(overlaps + pairs, far_overlaps[back])


@jit
@no_type_check
def _sum_behind(
    g,
    from_chunk,
    first,
    stop,
    g_token,
    g_dim,
    c,
    SIZE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Of the logs of all tokens of a chunk from a block on."""
    total = tl.zeros([BLOCK_K], tl.float32)
    for block in range(first, BLOCKS):
        t = from_chunk + block * BLOCK_T + tl.arange(0, BLOCK_T)
        logs = tile_of(g, t, stop, g_token, c.to(tl.int64), g_dim, SIZE)
        total += tl.sum(logs.to(tl.float32), 0)
    return total
