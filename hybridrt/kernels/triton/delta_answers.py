"""What gated_delta_rule answers to a chunk's queries, once its state and corrections are known."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.delta_decays import decay_between, tile_of
from hybridrt.kernels.triton.launch import FLOAT32_DOT, kernel, wait_for_earlier
from hybridrt.kernels.triton.products import add_parts, parts_of
from hybridrt.kernels.triton.states import tokens_of


@kernel(do_not_specialize=["first_row"])
@no_type_check
def answer_chunks(
    q,  # [tokens, heads // REPEATS, KEY_DIM]
    k,  # [tokens, heads // REPEATS, KEY_DIM]
    g,  # [tokens, heads], or with KEY_DIM behind
    deltas,  # [slots, heads, parts, BLOCK_T, VALUE_ROOM]
    states,  # [slots, heads, KEY_ROOM, VALUE_ROOM]
    seen,  # [slots, heads, BLOCK_T, BLOCK_T], where PER_CHANNEL
    y,  # [tokens, heads, VALUE_DIM]
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
    y_token,
    y_head,
    y_dim,
    first_row,
    REPEATS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_ROOM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_ROOM: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Some value channels of y for a chunk of a head."""
    wait_for_earlier()
    blocks: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0) // blocks
    start, stop = tokens_of(row, cu_seqlens, False)
    first = start + chunk * BLOCK_T
    if first >= stop:
        return
    heads = tl.num_programs(1)
    i = tl.arange(0, BLOCK_T)
    t = first + i
    here = (tl.program_id(0) % blocks) * BLOCK_V + tl.arange(0, BLOCK_V)
    q += head // REPEATS * q_head
    k += head // REPEATS * k_head
    g += head * g_head
    y += head * y_head
    slot = start // BLOCK_T + row + chunk
    at = slot * heads + head
    states += at * KEY_ROOM * VALUE_ROOM
    dtype: tl.constexpr = deltas.dtype.element_ty
    PARTS: tl.constexpr = 2 if dtype == tl.bfloat16 else 1
    low: tl.constexpr = PARTS - 1
    out = tl.zeros([BLOCK_T, BLOCK_V], tl.float32)
    scores = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    for channel in range(0, KEY_ROOM, BLOCK_K):
        c = channel + tl.arange(0, BLOCK_K)
        wide = c.to(tl.int64)
        query = tile_of(q, t, stop, q_token, wide, q_dim, KEY_DIM).to(tl.float32)
        if PER_CHANNEL:
            logs = tile_of(g, t, stop, g_token, wide, g_dim, KEY_DIM).to(tl.float32)
            query *= tl.exp(tl.cumsum(logs, 0))
        query, query_low = parts_of(query, dtype)
        if not PER_CHANNEL:
            key = tile_of(k, t, stop, k_token, wide, k_dim, KEY_DIM)
            key, key_low = parts_of(key, dtype)
            key, key_low = tl.trans(key), tl.trans(key_low)
            scores = add_parts(query, query_low, key, key_low, scores)
        state = tl.load(states + (c * VALUE_ROOM)[:, None] + here[None, :])
        if PARTS == 2:
            out = tl.dot(query_low, state, out)
        out = tl.dot(query, state, out, input_precision=FLOAT32_DOT)
    if PER_CHANNEL:
        at_pair = at * BLOCK_T * BLOCK_T + (i * BLOCK_T)[:, None] + i[None, :]
        scores = tl.load(seen + at_pair, mask=i[:, None] >= i[None, :], other=0.0)
    else:
        logs = tl.load(g + t * g_token, mask=t < stop, other=0.0).to(tl.float32)
        scores *= decay_between(logs, i)
        out *= tl.exp(tl.cumsum(logs, 0))[:, None]
    place = deltas + at * PARTS * BLOCK_T * VALUE_ROOM + (i * VALUE_ROOM)[:, None] + here[None, :]
    delta, delta_low = tl.load(place), tl.load(place + low * BLOCK_T * VALUE_ROOM)
    scores, scores_low = parts_of(scores, dtype)
    out = add_parts(scores, scores_low, delta, delta_low, out)
    d = here.to(tl.int64)
    place = y + (t * y_token)[:, None] + (d * y_dim)[None, :]
    live = (t < stop)[:, None] & (d < VALUE_DIM)[None, :]
    tl.store(place, out.to(y.dtype.element_ty), mask=live)
