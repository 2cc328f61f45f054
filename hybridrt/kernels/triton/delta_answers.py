"""What gated_delta_rule answers to a chunk's queries, once its state and corrections are known."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.delta_decays import decay_between, tile_of
from hybridrt.kernels.triton.launch import jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.products import add_product
from hybridrt.kernels.triton.states import tokens_of


@kernel(do_not_specialize=["first_row"])
@no_type_check
def answer_chunks(
    q,  # [tokens, heads // REPEATS, KEY_DIM]
    k,  # [tokens, heads // REPEATS, KEY_DIM]
    g,  # [tokens, heads], or with KEY_DIM behind
    deltas,  # [slots, heads, BLOCK_T, VALUE_DIM]
    states,  # [slots, heads, KEY_DIM, VALUE_DIM]
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
    VALUE_DIM: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Some value channels of y for a chunk of a head."""
    wait_for_earlier()
    parts: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0) // parts
    start, stop = tokens_of(row, cu_seqlens, False)
    first = start + chunk * BLOCK_T
    if first >= stop:
        return
    heads = tl.num_programs(1)
    i = tl.arange(0, BLOCK_T)
    t = first + i
    d = (tl.program_id(0) % parts).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    q += head // REPEATS * q_head
    k += head // REPEATS * k_head
    g += head * g_head
    y += head * y_head
    slot = (start // BLOCK_T + row + chunk) * heads + head
    states += slot * KEY_DIM * VALUE_DIM
    out = tl.zeros([BLOCK_T, BLOCK_V], tl.float32)
    scores = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    for channel in range(0, KEY_DIM, BLOCK_K):
        c = channel + tl.arange(0, BLOCK_K).to(tl.int64)
        query = tile_of(q, t, stop, q_token, c, q_dim, KEY_DIM)
        state = tile_of(states, c, KEY_DIM, VALUE_DIM, d, 1, VALUE_DIM)
        if PER_CHANNEL:
            logs = tile_of(g, t, stop, g_token, c, g_dim, KEY_DIM).to(tl.float32)
            query = query.to(tl.float32) * tl.exp(tl.cumsum(logs, 0))
        else:
            key = tile_of(k, t, stop, k_token, c, k_dim, KEY_DIM)
            scores = _add_in_parts(query, tl.trans(key), scores, y.dtype.element_ty == tl.bfloat16)
        out = add_product(query, state, out, 2)
    if PER_CHANNEL:
        at = slot * BLOCK_T * BLOCK_T + (i * BLOCK_T)[:, None] + i[None, :]
        scores = tl.load(seen + at, mask=i[:, None] >= i[None, :], other=0.0)
    else:
        logs = tl.load(g + t * g_token, mask=t < stop, other=0.0).to(tl.float32)
        scores *= decay_between(logs, i)
        out *= tl.exp(tl.cumsum(logs, 0))[:, None]
    deltas += slot * BLOCK_T * VALUE_DIM
    delta = tile_of(deltas, i, BLOCK_T, VALUE_DIM, d, 1, VALUE_DIM)
    out = _add_in_parts(scores, delta, out, y.dtype.element_ty == tl.bfloat16)
    at = y + (t * y_token)[:, None] + (d * y_dim)[None, :]
    live = (t < stop)[:, None] & (d < VALUE_DIM)[None, :]
    tl.store(at, out.to(y.dtype.element_ty), mask=live)


@jit
@no_type_check
def _add_in_parts(a, b, total, IN_PARTS: tl.constexpr):
    """`total + a @ b`; 16 bits of each side are more than y of bfloat16 has room for."""
    if IN_PARTS and b.dtype == tl.float32:
        high = b.to(tl.bfloat16)
        low = (b - high.to(tl.float32)).to(tl.bfloat16)
        total = add_product(a, high, total, 2)
        return tl.dot(a.to(tl.bfloat16), low, total)
    else:
        return add_product(a, b, total, 2)
