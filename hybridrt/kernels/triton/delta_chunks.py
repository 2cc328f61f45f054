"""gated_delta_rule's kernel for prefill rows: a row's solved chunks, one after the other."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit
from hybridrt.kernels.triton.states import if_so, pages_of, tokens_of


@jit(do_not_specialize=["first_row"])
@no_type_check
def run_chunks(
    q,  # [tokens, heads // REPEATS, KEY_DIM]
    k,  # [tokens, heads // REPEATS, KEY_DIM]
    g,  # [tokens, heads], or with KEY_DIM behind
    solved,  # [tokens, heads, BLOCK_T]
    seen,  # [tokens, heads, BLOCK_T]
    v,  # [tokens, heads, VALUE_DIM]
    ssm_state,  # [pages, heads, KEY_DIM, VALUE_DIM]
    y,  # [tokens, heads, VALUE_DIM]
    pages,  # [rows]
    initial_pages,  # [rows]
    has_initial_state,  # [rows]
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
    m_token,
    m_head,
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
    first_row,
    REPEATS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Some value channels of a head through all chunks of a row; see `delta_solve`."""
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    initial, page = pages_of(row, pages, initial_pages, has_initial_state, False)
    in_v = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    fits_v = in_v < VALUE_DIM
    i = tl.arange(0, BLOCK_T)
    # [parts, tokens, channels], and [parts, channels, values] of a state: a warp has its own part
    # of the key channels, so none computes what another does, and a state stays where it is.
    part, in_part = tl.arange(0, PARTS)[:, None, None], tl.arange(0, BLOCK_K)
    in_k = (part * BLOCK_K + in_part[None, None, :]).to(tl.int64)
    fits_k = in_k < KEY_DIM
    in_state = (part * BLOCK_K + in_part[None, :, None]).to(tl.int64)
    in_page = head * s_head + in_state * s_k + (in_v * s_v)[None, None, :]
    there = (in_state < if_so(initial >= 0, KEY_DIM)) & fits_v[None, None, :]
    state = tl.load(ssm_state + initial * s_page + in_page, mask=there, other=0.0).to(tl.float32)
    q += head // REPEATS * q_head
    k += head // REPEATS * k_head
    g += head * g_head
    v += head * v_head
    y += head * y_head
    for first in range(start, stop, BLOCK_T):
        # Behind the last token all inputs are zeros, which leave a state as it is.
        t = first + i
        live = t < stop
        live_v = live[:, None] & fits_v[None, :]
        at = v + (t * v_token)[:, None] + (in_v * v_dim)[None, :]
        value = tl.load(at, mask=live_v, other=0.0).to(tl.float32)
        at = (t * m_token + head * m_head)[:, None] + i[None, :]
        solve = tl.load(solved + at, mask=live[:, None], other=0.0)
        sees = tl.load(seen + at, mask=live[:, None], other=0.0)
        t = t[None, :, None]
        live_k = (t < stop) & fits_k
        key = tl.load(k + t * k_token + in_k * k_dim, mask=live_k, other=0.0).to(tl.float32)
        from_start, to_end, whole = _decays(
            g, first, stop, g_token, in_k * g_dim, fits_k, PER_CHANNEL, BLOCK_T
        )
        answers = tl.sum(tl.dot(key * from_start, state, input_precision=FLOAT32_DOT), 0)
        delta = tl.dot(solve, value - answers, input_precision=FLOAT32_DOT)
        query = tl.load(q + t * q_token + in_k * q_dim, mask=live_k, other=0.0).to(tl.float32)
        out = tl.sum(tl.dot(query * from_start, state, input_precision=FLOAT32_DOT), 0)
        out = tl.dot(sees, delta, out, input_precision=FLOAT32_DOT)
        at = y + ((first + i) * y_token)[:, None] + (in_v * y_dim)[None, :]
        tl.store(at, out.to(y.dtype.element_ty), mask=live_v)
        state *= whole
        delta = tl.broadcast_to(delta[None, :, :], (PARTS, BLOCK_T, BLOCK_V))
        added = tl.permute(key * to_end, (0, 2, 1))
        state = tl.dot(added, delta, state, input_precision=FLOAT32_DOT)
    held = (in_state < if_so(page >= 0, KEY_DIM)) & fits_v[None, None, :]
    kept = state.to(ssm_state.dtype.element_ty)
    tl.store(ssm_state + page * s_page + in_page, kept, mask=held)


@jit
@no_type_check
def _decays(
    g, first, stop, g_token, in_g, fits_g, PER_CHANNEL: tl.constexpr, BLOCK_T: tl.constexpr
):
    """From before a chunk to behind each token, from behind each to its end, and of all of it.

    Sums from either end, no differences: a token that forgets everything takes a sum to -1,000
    and beyond, where float32 has no digits left for those of the others.
    """
    i = tl.arange(0, BLOCK_T)
    if PER_CHANNEL:
        i = i[None, :, None]
        in_g, live, has_next = in_g + (first + i) * g_token, (first + i < stop) & fits_g, fits_g
    else:  # of one dimension: Triton 3.6 can't add up a column of three
        in_g, live, has_next = (first + i) * g_token, first + i < stop, True
    has_next = has_next & (i + 1 < BLOCK_T) & (first + i + 1 < stop)
    logs = tl.load(g + in_g, mask=live, other=0.0).to(tl.float32)
    later = tl.load(g + g_token + in_g, mask=has_next, other=0.0).to(tl.float32)
    if PER_CHANNEL:
        from_start, to_end = tl.cumsum(logs, 1), tl.cumsum(later, 1, reverse=True)
        whole = tl.sum(logs, 1)[:, :, None]
    else:
        from_start = tl.cumsum(logs, 0)[None, :, None]
        to_end = tl.cumsum(later, 0, reverse=True)[None, :, None]
        whole = tl.sum(logs, 0)
    return tl.exp(from_start), tl.exp(to_end), tl.exp(whole)
