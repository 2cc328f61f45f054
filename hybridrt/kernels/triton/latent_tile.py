"""The kernel of mla_attention: a tile of absorbed queries goes over the latents that it sees."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, LOG2_E, kernel, wait_for_earlier
from hybridrt.kernels.triton.softmax import (
    add_tile,
    divided,
    first_visible,
    log_of,
    part_of_split,
)


@kernel(do_not_specialize=["first_row", "first_token", "splits"])
@no_type_check
def attend_latents(
    q,  # [queries, HEADS, RANK]
    q_pe,  # [queries, HEADS, ROPE_DIM]
    c_kv,  # [blocks, BLOCK_SIZE, RANK]
    k_pe,  # [blocks, BLOCK_SIZE, ROPE_DIM]
    c_scale,  # [blocks, BLOCK_SIZE, groups of SCALE_GROUP]
    table,  # [rows, max_blocks]
    seq_lens,  # [rows]
    cu_seqlens,  # [rows + 1]
    out,  # [queries, HEADS, RANK], or with an axis of splits before the last; that is contiguous
    logs,  # [queries, HEADS, splits]: of each split's denominator
    q_token,
    q_head,
    q_dim,
    q_pe_token,
    q_pe_head,
    q_pe_dim,
    c_block,
    c_token,
    c_dim,
    p_block,
    p_token,
    p_dim,
    s_block,
    s_token,
    s_group,
    table_row,
    out_token,
    out_head,
    scale,
    first_row,
    first_token,
    splits,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    SCALE_GROUP: tl.constexpr,  # 0: latents are not quantised
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    IN_SPLITS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A tile of one row's queries, of some heads, over a split of what it sees."""
    wait_for_earlier()
    row = (first_row + tl.program_id(1)).to(tl.int64)
    tile, split = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(2)
    start, seq_len = tl.load(cu_seqlens + row), tl.load(seq_lens + row)
    queries = tl.load(cu_seqlens + row + 1) - start
    if tile * BLOCK_M >= queries * HEADS:
        return
    context = seq_len - queries
    index = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    in_row = index < queries * HEADS
    position = context + index // HEADS
    token = (start - first_token + index // HEADS).to(tl.int64)
    head = (index % HEADS).to(tl.int64)
    in_r, in_p = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_P)
    fits_r, fits_p = in_r < RANK, in_p < ROPE_DIM
    of_q = q + (token * q_token + head * q_head)[:, None] + (in_r * q_dim)[None, :]
    on_latents = tl.load(of_q, mask=in_row[:, None] & fits_r[None, :], other=0.0)
    of_q = q_pe + (token * q_pe_token + head * q_pe_head)[:, None] + (in_p * q_pe_dim)[None, :]
    on_rotary = tl.load(of_q, mask=in_row[:, None] & fits_p[None, :], other=0.0)

    oldest = first_visible(position, WINDOW, CHUNKED)
    first = first_visible(context + tile * BLOCK_M // HEADS, WINDOW, CHUNKED)
    stop = tl.minimum(context + (tile * BLOCK_M + BLOCK_M - 1) // HEADS + 1, seq_len)
    begin = first_visible(context, WINDOW, CHUNKED) // BLOCK_SIZE * BLOCK_SIZE
    lo, hi = part_of_split(first, stop, split, splits, BLOCK_N)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    if SCALE_GROUP:
        # A latent shorter than a group is one.
        WIDTH: tl.constexpr = min(SCALE_GROUP, BLOCK_R)
        group = tl.arange(0, BLOCK_R // WIDTH).to(tl.int64)
    table += row * table_row
    in_tile = tl.arange(0, BLOCK_N)
    # A tile's pages are looked up a tile ahead: latents asked for in the pipeline of loads would
    # else take one stage of two for that, and none would be on its way during the products.
    block = tl.load(table + (lo + in_tile - begin) // BLOCK_SIZE, mask=lo + in_tile < hi, other=0)
    for tile_start in range(lo, hi, BLOCK_N):
        seen = tile_start + in_tile
        live = seen < hi
        place = seen - begin
        following = tl.load(
            table + (place + BLOCK_N) // BLOCK_SIZE, mask=seen + BLOCK_N < hi, other=0
        )
        offset = (place % BLOCK_SIZE).to(tl.int64)
        of_c = c_kv + (block.to(tl.int64) * c_block + offset * c_token)[:, None]
        there = live[:, None] & fits_r[None, :]
        latents = tl.load(of_c + (in_r * c_dim)[None, :], mask=there, other=0.0)
        if SCALE_GROUP:
            of_scale = c_scale + (block.to(tl.int64) * s_block + offset * s_token)[:, None]
            of_scale += (group * s_group)[None, :]
            there = live[:, None] & (group * WIDTH < RANK)[None, :]
            scales = tl.load(of_scale, mask=there, other=0.0)
            in_groups = tl.reshape(latents, (BLOCK_N, BLOCK_R // WIDTH, WIDTH)).to(tl.float32)
            latents = tl.reshape(in_groups * scales[:, :, None], (BLOCK_N, BLOCK_R))
        latents = latents.to(on_latents.dtype)
        of_p = k_pe + (block.to(tl.int64) * p_block + offset * p_token)[None, :]
        rotary = tl.load(
            of_p + (in_p * p_dim)[:, None], mask=fits_p[:, None] & live[None, :], other=0.0
        ).to(on_rotary.dtype)
        scores = tl.dot(on_latents, tl.trans(latents), input_precision=FLOAT32_DOT)
        scores = tl.dot(on_rotary, rotary, scores, input_precision=FLOAT32_DOT)
        sees = (seen[None, :] <= position[:, None]) & (seen[None, :] >= oldest[:, None])
        scores = tl.where(sees & live[None, :], scores * (scale * LOG2_E), float("-inf"))
        largest, total, acc = add_tile(scores, latents, 1.0, largest, total, acc, True)
        block = following

    if IN_SPLITS:
        at = (token * HEADS + head) * splits + split
        tl.store(logs + at, log_of(largest, total), mask=in_row)
        out += split * RANK
        in_row = in_row & (total > 0)
    at = out + (token * out_token + head * out_head)[:, None] + in_r[None, :]
    result = divided(acc, total).to(out.dtype.element_ty)
    tl.store(at, result, mask=in_row[:, None] & fits_r[None, :])
