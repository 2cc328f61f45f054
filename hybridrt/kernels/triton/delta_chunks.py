"""gated_delta_rule's kernels for prefill rows with one decay a head: triangular systems.

What token i of a chunk corrects is `delta_i = beta_i (v_i - S^T k_i)`, with S behind the token
before it. Written out, `(I + M) delta = beta (v - decayed k S)` with the S before the chunk, and M
strictly lower triangular (arXiv 2412.06464, section 3.3). M depends on no state: all chunks are
inverted at once, and only products are left for the walk from chunk to chunk.
"""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit
from hybridrt.kernels.triton.states import exact_sums, if_so, pages_of, tokens_of


@jit(do_not_specialize=["first_row"])
@no_type_check
def invert_chunks(
    k,  # [tokens, key_heads, KEY_DIM]
    g,  # [tokens, heads]
    beta,  # [tokens, heads]
    inverse,  # [tokens, heads, BLOCK_T], contiguous
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
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """`(I + M)^-1` of one chunk and head, row by row from the first: a stable substitution."""
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    if tl.program_id(0) * BLOCK_T >= stop - start:
        return
    i, in_k = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K).to(tl.int64)
    t = start + tl.program_id(0) * BLOCK_T + i
    live = t < stop
    at = k + head // REPEATS * k_head + (t * k_token)[:, None] + (in_k * k_dim)[None, :]
    keys = tl.load(at, mask=live[:, None] & (in_k < KEY_DIM)[None, :], other=0.0)
    rate = tl.load(beta + t * b_token + head * b_head, mask=live, other=0.0).to(tl.float32)
    logs = tl.load(g + t * g_token + head * g_head, mask=live, other=0.0)
    sums, rest, _, _ = exact_sums(logs)
    between = (sums[None, :] - sums[:, None]) + (rest[None, :] - rest[:, None])
    decay = tl.where(i[:, None] < i[None, :], tl.exp(tl.minimum(between, 0.0)), 0.0)
    # M's transpose: what a row of M has is then summed over the axis of the rows before it.
    m = tl.dot(keys, tl.trans(keys), input_precision=FLOAT32_DOT) * decay * rate[None, :]
    result = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for this in range(1, BLOCK_T):
        factors = tl.sum(tl.where(i[None, :] == this, m, 0.0), 1)
        known = tl.sum(factors[:, None] * result, 0)
        result -= tl.where(i[:, None] == this, known[None, :], 0.0)
    heads = tl.num_programs(1)
    at = inverse + ((t * heads + head) * BLOCK_T)[:, None] + i[None, :]
    tl.store(at, result, mask=live[:, None])


@jit(do_not_specialize=["first_row"])
@no_type_check
def run_delta_chunks(
    q,  # [tokens, key_heads, KEY_DIM]
    k,  # [tokens, key_heads, KEY_DIM]
    v,  # [tokens, heads, VALUE_DIM]
    g,  # [tokens, heads]
    beta,  # [tokens, heads]
    inverse,  # [tokens, heads, BLOCK_T], contiguous
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
    v_token,
    v_head,
    v_dim,
    g_token,
    g_head,
    b_token,
    b_head,
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
    VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Some value channels of a head through all chunks of a row."""
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    initial, page = pages_of(row, pages, initial_pages, has_initial_state, False)
    in_v = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    i, in_k = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K).to(tl.int64)
    fits_k, fits_v = in_k < KEY_DIM, in_v < VALUE_DIM
    in_page = head * s_head + (in_k * s_k)[:, None] + (in_v * s_v)[None, :]
    there = (in_k < if_so(initial >= 0, KEY_DIM))[:, None] & fits_v[None, :]
    state = tl.load(ssm_state + initial * s_page + in_page, mask=there, other=0.0).to(tl.float32)
    heads = tl.num_programs(1)
    q += head // REPEATS * q_head
    k += head // REPEATS * k_head
    for first in range(start, stop, BLOCK_T):
        # Behind the last token k, g and beta are zeros, which leave a state as it is.
        t = first + i
        live = t < stop
        in_row = live[:, None] & fits_k[None, :]
        queries = tl.load(
            q + (t * q_token)[:, None] + (in_k * q_dim)[None, :], mask=in_row, other=0.0
        )
        keys = tl.load(k + (t * k_token)[:, None] + (in_k * k_dim)[None, :], mask=in_row, other=0.0)
        in_row = live[:, None] & fits_v[None, :]
        at = v + head * v_head + (t * v_token)[:, None] + (in_v * v_dim)[None, :]
        values = tl.load(at, mask=in_row, other=0.0).to(tl.float32)
        rate = tl.load(beta + t * b_token + head * b_head, mask=live, other=0.0).to(tl.float32)
        logs = tl.load(g + t * g_token + head * g_head, mask=live, other=0.0)
        at = inverse + ((t * heads + head) * BLOCK_T)[:, None] + i[None, :]
        solve = tl.load(at, mask=live[:, None], other=0.0)
        sums, rest, exact, whole = exact_sums(logs)
        between = (sums[:, None] - sums[None, :]) + (rest[:, None] - rest[None, :])
        decay = tl.where(i[:, None] >= i[None, :], tl.exp(tl.minimum(between, 0.0)), 0.0)
        from_start = tl.exp(sums)[:, None]
        to_end = tl.exp((whole - exact).to(tl.float32))

        # Solved for values and keys apart: like keys cancel here, and not as multiples of a state.
        asked = rate[:, None] * from_start * keys.to(tl.float32)
        of_keys = tl.dot(solve, asked, input_precision=FLOAT32_DOT)
        delta = tl.dot(solve, rate[:, None] * values, input_precision=FLOAT32_DOT)
        delta -= tl.dot(of_keys, state, input_precision=FLOAT32_DOT)
        sees = tl.dot(queries, tl.trans(keys), input_precision=FLOAT32_DOT) * decay
        out = tl.dot(queries.to(tl.float32), state, input_precision=FLOAT32_DOT) * from_start
        out = tl.dot(sees, delta, out, input_precision=FLOAT32_DOT)
        at = y + head * y_head + (t * y_token)[:, None] + (in_v * y_dim)[None, :]
        tl.store(at, out.to(y.dtype.element_ty), mask=in_row)
        added = tl.trans(keys.to(tl.float32) * to_end[:, None])
        state *= tl.exp(whole.to(tl.float32))
        state = tl.dot(added, delta, state, input_precision=FLOAT32_DOT)
    held = (in_k < if_so(page >= 0, KEY_DIM))[:, None] & fits_v[None, :]
    kept = state.to(ssm_state.dtype.element_ty)
    tl.store(ssm_state + page * s_page + in_page, kept, mask=held)
