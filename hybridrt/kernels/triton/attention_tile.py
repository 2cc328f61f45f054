"""The kernel of paged_attention: a tile of queries goes over the tokens that it sees."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, LOG2_E, jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.softmax import (
    add_tile,
    divided,
    first_visible,
    log_of,
    part_of_split,
    soft_capped,
)


@kernel(do_not_specialize=["first_row", "splits"])
@no_type_check
def attend_tile(
    q,  # [tokens, kv_heads * GROUP, DIM_K]
    q_more,  # [tokens, kv_heads * GROUP, DIM_MORE]: the channels behind those of q
    k,  # [blocks, kv_heads, BLOCK_SIZE, DIM_K]
    k_more,  # [blocks, kv_heads, BLOCK_SIZE, DIM_MORE]
    v,  # [blocks, kv_heads, BLOCK_SIZE, DIM_V]
    k_scale,  # [kv_heads], or [blocks, kv_heads, BLOCK_SIZE]
    v_scale,  # as k_scale
    sinks,  # [kv_heads * GROUP]
    table,  # [rows, max_blocks]; None: a row's tokens lie one behind another, BLOCK_SIZE is 1
    seq_lens,  # [rows]
    cu_seqlens,  # [rows + 1]
    out,  # [tokens, kv_heads * GROUP, DIM_V], or with a contiguous axis of splits before the last
    logs,  # [tokens, kv_heads * GROUP, splits]: of each split's denominator
    q_token,
    q_head,
    q_dim,
    qm_token,
    qm_head,
    qm_dim,
    k_block,
    k_head,
    k_token,
    k_dim,
    km_block,
    km_head,
    km_token,
    km_dim,
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
    DIM_MORE: tl.constexpr,  # 0: there are none
    DIM_V: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    SCALES: tl.constexpr,  # 0: none, 1: one a head, 2: one a token and head
    HAS_SINKS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    SCALE_LATE: tl.constexpr,  # within the softmax, which is less to compute
    IN_SPLITS: tl.constexpr,
    SPLIT_LOOP: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_MORE: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A tile of one row's queries, of all heads of a group, over a split of what it sees."""
    wait_for_earlier()
    row = (first_row + tl.program_id(1)).to(tl.int64)
    kv_head, split = (tl.program_id(0) // splits).to(tl.int64), tl.program_id(0) % splits
    # The last queries see the most, so their tiles begin first, in all heads.
    tile = tl.num_programs(2) - 1 - tl.program_id(2)
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
    queried_more = queried
    if DIM_MORE:
        in_more = tl.arange(0, BLOCK_MORE).to(tl.int64)
        there = in_row[:, None] & (in_more < DIM_MORE)[None, :]
        of_q = q_more + (token * qm_token + head * qm_head)[:, None] + (in_more * qm_dim)[None, :]
        queried_more = tl.load(of_q, mask=there, other=0.0)
        k_more += kv_head * km_head
    if SCALES == 1:
        scale *= tl.load(k_scale + kv_head)

    oldest = first_visible(position, WINDOW, CHUNKED)
    first = first_visible(context + tile * BLOCK_M // GROUP, WINDOW, CHUNKED)
    stop = tl.minimum(context + (tile * BLOCK_M + BLOCK_M - 1) // GROUP + 1, seq_len)
    begin = first_visible(context, WINDOW, CHUNKED) // BLOCK_SIZE * BLOCK_SIZE
    lo, hi = part_of_split(first, stop, split, splits, BLOCK_N)
    # What all queries of the tile see needs no mask. Windows end it: few tiles are inside one. A
    # decode waits for memory, and two loops would wait twice.
    middle = lo
    if SPLIT_LOOP:
        seen_by_all = tl.minimum(hi, context + tile * BLOCK_M // GROUP + 1)
        middle = lo + tl.maximum(seen_by_all - lo, 0) // BLOCK_N * BLOCK_N
    k += kv_head * k_head
    v += kv_head * v_head
    if SCALES == 2:
        k_scale += kv_head * ks_head
        v_scale += kv_head * vs_head
    if table is not None:
        table += row * table_row
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for part in tl.static_range(0 if SPLIT_LOOP else 1, 2):
        largest, total, acc = _attend(
            queried,
            queried_more,
            position,
            oldest,
            k,
            k_more,
            v,
            k_scale,
            v_scale,
            table,
            (k_block, k_token, k_dim),
            (km_block, km_token, km_dim),
            (v_block, v_token, v_dim),
            (ks_block, ks_token),
            (vs_block, vs_token),
            scale,
            cap,
            begin,
            middle if part else lo,
            hi if part else middle,
            largest,
            total,
            acc,
            BLOCK_SIZE,
            DIM_K,
            DIM_MORE,
            DIM_V,
            SCALES,
            HAS_CAP,
            SCALE_LATE,
            BLOCK_K,
            BLOCK_MORE,
            BLOCK_V,
            BLOCK_N,
            part == 1,
        )

    if SCALES == 1:
        acc *= tl.load(v_scale + kv_head)
    if IN_SPLITS:
        heads = tl.num_programs(0) // splits * GROUP
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


@jit
@no_type_check
def _attend(
    queried,  # [BLOCK_M, BLOCK_K]
    queried_more,  # [BLOCK_M, BLOCK_MORE], if there are more channels
    position,  # [BLOCK_M]
    oldest,  # [BLOCK_M]: the first token that each query sees
    k,  # a head's keys
    k_more,
    v,
    k_scale,  # and scales
    v_scale,
    table,  # [blocks], or None
    k_strides,  # of a block, a token and a channel
    km_strides,
    v_strides,
    ks_strides,
    vs_strides,
    scale,
    cap,
    begin,  # the token with which the table begins
    lo,
    hi,
    largest,
    total,
    acc,
    BLOCK_SIZE: tl.constexpr,
    DIM_K: tl.constexpr,
    DIM_MORE: tl.constexpr,
    DIM_V: tl.constexpr,
    SCALES: tl.constexpr,
    HAS_CAP: tl.constexpr,
    SCALE_LATE: tl.constexpr,  # within the softmax, which is less to compute
    BLOCK_K: tl.constexpr,
    BLOCK_MORE: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,  # else all queries see all tokens, which are whole tiles
):
    """Takes the tokens `lo:hi` into the running softmax of a tile."""
    for tile_start in range(lo, hi, BLOCK_N):
        seen = tile_start + tl.arange(0, BLOCK_N)
        live = seen < hi
        place = seen - begin
        if table is None:
            block, offset = (place * 0).to(tl.int64), place.to(tl.int64)
        else:
            # Unsigned, as a signed number is divided in many more steps.
            place = place.to(tl.uint32)
            block = tl.load(table + place // BLOCK_SIZE, mask=live, other=0)
            block, offset = block.to(tl.int64), (place % BLOCK_SIZE).to(tl.int64)
        keys = _load(k, k_strides, block, offset, live, DIM_K, BLOCK_K, MASKED)
        keys = tl.trans(keys.to(queried.dtype))
        scores = tl.dot(queried, keys, input_precision=FLOAT32_DOT)
        if DIM_MORE:
            keys = _load(k_more, km_strides, block, offset, live, DIM_MORE, BLOCK_MORE, MASKED)
            keys = tl.trans(keys.to(queried.dtype))
            scores = tl.dot(queried_more, keys, scores, input_precision=FLOAT32_DOT)
        if not SCALE_LATE:
            scores *= scale
        v_scales = 1.0
        if SCALES == 2:
            of_ks = block * ks_strides[0] + offset * ks_strides[1]
            of_vs = block * vs_strides[0] + offset * vs_strides[1]
            scores *= tl.load(k_scale + of_ks, mask=live, other=0.0)[None, :]
            v_scales = tl.load(v_scale + of_vs, mask=live, other=0.0)[None, :]
        if HAS_CAP:
            scores = soft_capped(scores, cap)
        values = _load(v, v_strides, block, offset, live, DIM_V, BLOCK_V, MASKED)
        values = values.to(queried.dtype)
        if not SCALE_LATE:
            scores *= LOG2_E
        if MASKED:
            sees = (seen[None, :] <= position[:, None]) & (seen[None, :] >= oldest[:, None])
            scores = tl.where(sees & live[None, :], scores, float("-inf"))
        factor = scale * LOG2_E if SCALE_LATE else 1.0
        largest, total, acc = add_tile(
            scores, values, v_scales, largest, total, acc, MASKED, factor
        )
    return largest, total, acc


@jit
@no_type_check
def _load(
    at,
    strides,  # of a block, a token and a channel
    block,  # [tokens]
    offset,  # [tokens]
    live,  # [tokens]
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
):
    """A tile of keys or values, `[tokens, BLOCK]`; without a mask where all of it is there."""
    channel = tl.arange(0, BLOCK)
    fits = (channel < DIM)[None, :]
    # Pointers are put together here: as many as numbers of a tile take all registers else.
    at += (block * strides[0] + offset * strides[1])[:, None]
    at += (channel.to(tl.int64) * strides[2])[None, :]
    if MASKED:
        return tl.load(at, mask=fits & live[:, None], other=0.0)
    elif DIM == BLOCK:
        return tl.load(at)
    else:
        return tl.load(at, mask=fits, other=0.0)
