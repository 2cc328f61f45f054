"""The kernel of paged_attention: a tile of queries goes over the tokens that it sees."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, LOG2_E, jit
from hybridrt.kernels.triton.softmax import (
    add_tile,
    divided,
    first_visible,
    log_of,
    part_of_split,
    soft_capped,
)


@jit(do_not_specialize=["first_row", "splits"])
@no_type_check
def attend_tile(
    q,  # [tokens, kv_heads * GROUP, DIM_K]
    k,  # [blocks, kv_heads, BLOCK_SIZE, DIM_K]
    v,  # [blocks, kv_heads, BLOCK_SIZE, DIM_V]
    k_scale,  # [kv_heads], or [blocks, kv_heads, BLOCK_SIZE]
    v_scale,  # as k_scale
    sinks,  # [kv_heads * GROUP]
    table,  # [rows, max_blocks]
    seq_lens,  # [rows]
    cu_seqlens,  # [rows + 1]
    out,  # [tokens, kv_heads * GROUP, DIM_V], or with a contiguous axis of splits before the last
    logs,  # [tokens, kv_heads * GROUP, splits]: of each split's denominator
    q_token,
    q_head,
    q_dim,
    k_block,
    k_head,
    k_token,
    k_dim,
    v_block,
    v_head,
    v_token,
    v_dim,
    ks_block,
    ks_head,
    ks_token,
    vs_block,
    vs_head,
    vs_token,
    table_row,
    out_token,
    out_head,
    out_dim,
    scale,
    cap,
    first_row,
    splits,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM_K: tl.constexpr,
    DIM_V: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    SCALES: tl.constexpr,  # 0: none, 1: one a head, 2: one a token and head
    HAS_SINKS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IN_SPLITS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A tile of one row's queries, of all heads of a group, over a split of what it sees."""
    row = (first_row + tl.program_id(1)).to(tl.int64)
    kv_head, split = (tl.program_id(2) // splits).to(tl.int64), tl.program_id(2) % splits
    # The last queries see the most, so their tiles begin first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    start, seq_len = tl.load(cu_seqlens + row), tl.load(seq_lens + row)
    queries = tl.load(cu_seqlens + row + 1) - start
    if tile * BLOCK_M >= queries * GROUP:
        return
    context = seq_len - queries
    index = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    in_row = index < queries * GROUP
    position = context + index // GROUP
    token = (start + index // GROUP).to(tl.int64)
    head = kv_head * GROUP + index % GROUP
    in_k, in_v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    fits_k, fits_v = in_k < DIM_K, in_v < DIM_V
    in_k, in_v = in_k.to(tl.int64), in_v.to(tl.int64)
    of_q = q + (token * q_token + head * q_head)[:, None] + (in_k * q_dim)[None, :]
    queried = tl.load(of_q, mask=in_row[:, None] & fits_k[None, :], other=0.0)
    if SCALES == 1:
        scale *= tl.load(k_scale + kv_head)

    oldest = first_visible(position, WINDOW, CHUNKED)
    first = first_visible(context + tile * BLOCK_M // GROUP, WINDOW, CHUNKED)
    stop = tl.minimum(context + (tile * BLOCK_M + BLOCK_M - 1) // GROUP + 1, seq_len)
    begin = first_visible(context, WINDOW, CHUNKED) // BLOCK_SIZE * BLOCK_SIZE
    lo, hi = part_of_split(first, stop, split, splits, BLOCK_N)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for tile_start in range(lo, hi, BLOCK_N):
        seen = tile_start + tl.arange(0, BLOCK_N)
        live = seen < hi
        place = seen - begin
        block = tl.load(table + row * table_row + place // BLOCK_SIZE, mask=live, other=0)
        block, offset = block.to(tl.int64), (place % BLOCK_SIZE).to(tl.int64)
        of_k = k + (block * k_block + kv_head * k_head + offset * k_token)[None, :]
        keys = tl.load(
            of_k + (in_k * k_dim)[:, None], mask=fits_k[:, None] & live[None, :], other=0.0
        ).to(queried.dtype)
        scores = tl.dot(queried, keys, input_precision=FLOAT32_DOT) * scale
        v_scales = 1.0
        if SCALES == 2:
            of_scale = block * ks_block + kv_head * ks_head + offset * ks_token
            scores *= tl.load(k_scale + of_scale, mask=live, other=0.0)[None, :]
            of_scale = block * vs_block + kv_head * vs_head + offset * vs_token
            v_scales = tl.load(v_scale + of_scale, mask=live, other=0.0)[None, :]
        if HAS_CAP:
            scores = soft_capped(scores, cap)
        of_v = v + (block * v_block + kv_head * v_head + offset * v_token)[:, None]
        values = tl.load(
            of_v + (in_v * v_dim)[None, :], mask=live[:, None] & fits_v[None, :], other=0.0
        ).to(queried.dtype)
        sees = (seen[None, :] <= position[:, None]) & (seen[None, :] >= oldest[:, None])
        largest, total, acc = add_tile(
            scores * LOG2_E, sees & live[None, :], values, v_scales, largest, total, acc
        )

    if SCALES == 1:
        acc *= tl.load(v_scale + kv_head)
    if IN_SPLITS:
        heads = tl.num_programs(2) // splits * GROUP
        at = (token * heads + head) * splits + split
        tl.store(logs + at, log_of(largest, total), mask=in_row)
        out += split * DIM_V
        in_row = in_row & (total > 0)
    elif HAS_SINKS:
        sink = tl.load(sinks + head, mask=in_row, other=0.0).to(tl.float32) * LOG2_E
        new_largest = tl.maximum(largest, sink)
        shrink = tl.exp2(largest - new_largest)
        total = total * shrink + tl.exp2(sink - new_largest)
        acc *= shrink[:, None]
    at = out + (token * out_token + head * out_head)[:, None] + (in_v * out_dim)[None, :]
    result = divided(acc, total).to(out.dtype.element_ty)
    tl.store(at, result, mask=in_row[:, None] & fits_v[None, :])
