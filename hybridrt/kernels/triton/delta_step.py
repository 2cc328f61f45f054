"""gated_delta_rule's kernel for decode rows: one token of each."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import kernel, wait_for_earlier
from hybridrt.kernels.triton.states import if_so


@kernel
@no_type_check
def run_step(
    q,  # [tokens, heads // REPEATS, KEY_DIM]
    k,  # [tokens, heads // REPEATS, KEY_DIM]
    g,  # [tokens, heads], or with KEY_DIM behind
    beta,  # [tokens, heads]
    v,  # [tokens, heads, VALUE_DIM]
    ssm_state,  # [pages, heads, KEY_DIM, VALUE_DIM]
    y,  # [tokens, heads, VALUE_DIM]
    pages,  # [rows]
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
    s_page,
    s_head,
    s_k,
    s_v,
    y_token,
    y_head,
    y_dim,
    REPEATS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BLOCK_K: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Some value channels of a head through one token of a row."""
    wait_for_earlier()
    row, head = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    page = tl.load(pages + row).to(tl.int64)
    in_v = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k = tl.arange(0, BLOCK_K).to(tl.int64)
    fits_v, fits_k = in_v < VALUE_DIM, in_k < KEY_DIM
    # Keys are the last axis, which a warp's threads share out: sums over them are the most work.
    place = ssm_state + page * s_page + head * s_head
    place += (in_v * s_v)[:, None] + (in_k * s_k)[None, :]
    held = fits_v[:, None] & (in_k < if_so(page >= 0, KEY_DIM))[None, :]
    state = tl.load(place, mask=held, other=0.0).to(tl.float32)
    group = head // REPEATS
    query = tl.load(q + row * q_token + group * q_head + in_k * q_dim, mask=fits_k, other=0.0)
    key = tl.load(k + row * k_token + group * k_head + in_k * k_dim, mask=fits_k, other=0.0)
    value = tl.load(v + row * v_token + head * v_head + in_v * v_dim, mask=fits_v, other=0.0)
    strength = tl.load(beta + row * b_token + head * b_head).to(tl.float32)
    g += row * g_token + head * g_head
    if PER_CHANNEL:
        decay = tl.exp(tl.load(g + in_k * g_dim, mask=fits_k, other=0.0).to(tl.float32))
        state *= decay[None, :]
    else:
        state *= tl.exp(tl.load(g).to(tl.float32))
    query, key = query.to(tl.float32), key.to(tl.float32)
    # What q reads of the correction is (q . k) delta, so neither sum waits for the other.
    answer = tl.sum(state * key[None, :], 1)
    read = tl.sum(state * query[None, :], 1)
    delta = strength * (value.to(tl.float32) - answer)
    state += delta[:, None] * key[None, :]
    tl.store(place, state.to(ssm_state.dtype.element_ty), mask=held)
    out = read + tl.sum(query * key, 0) * delta
    at = y + row * y_token + head * y_head + in_v * y_dim
    tl.store(at, out.to(y.dtype.element_ty), mask=fits_v)
