"""ssd's kernel for prefill rows: products of matrices inside a chunk, the state in registers."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit
from hybridrt.kernels.triton.states import if_so, pages_of, tokens_of


@jit(do_not_specialize=["first_row"])
@no_type_check
def run_chunks(
    x,  # [tokens, heads, HEAD_DIM]
    dt,  # [tokens, heads]
    A,  # [heads]
    B,  # [tokens, heads // REPEATS, SIZE]
    C,  # [tokens, heads // REPEATS, SIZE]
    D,  # [heads]
    ssm_state,  # [pages, heads, HEAD_DIM, SIZE]
    y,  # [tokens, heads, HEAD_DIM]
    pages,  # [rows]
    initial_pages,  # [rows]
    has_initial_state,  # [rows]
    cu_seqlens,  # [rows + 1]
    x_token,
    x_head,
    x_dim,
    dt_token,
    dt_head,
    A_head,
    B_token,
    B_group,
    B_n,
    C_token,
    C_group,
    C_n,
    D_head,
    s_page,
    s_head,
    s_dim,
    s_n,
    y_token,
    y_head,
    y_dim,
    first_row,
    REPEATS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Some channels of a head through all chunks of a row."""
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    initial, page = pages_of(row, pages, initial_pages, has_initial_state, False)
    p = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
    n, i = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_T)
    fits_p, fits_n = p < HEAD_DIM, n < SIZE
    n = n.to(tl.int64)
    in_page = head * s_head + (p * s_dim)[:, None] + (n * s_n)[None, :]
    there = (p < if_so(initial >= 0, HEAD_DIM))[:, None] & fits_n[None, :]
    h = tl.load(ssm_state + initial * s_page + in_page, mask=there, other=0.0).to(tl.float32)
    a = tl.load(A + head * A_head).to(tl.float32)
    d = tl.load(D + head * D_head).to(tl.float32)
    x += head * x_head
    dt += head * dt_head
    B += head // REPEATS * B_group
    C += head // REPEATS * C_group
    y += head * y_head
    for first in range(start, stop, BLOCK_T):
        # Behind the last token dt is zero, which neither decays a state nor adds to it.
        t = first + i
        live = t < stop
        live_p, live_n = live[:, None] & fits_p[None, :], live[:, None] & fits_n[None, :]
        step = tl.load(dt + t * dt_token, mask=live, other=0.0).to(tl.float32)
        u = tl.load(x + (t * x_token)[:, None] + (p * x_dim)[None, :], mask=live_p, other=0.0)
        u = u.to(tl.float32)
        b = tl.load(B + (t * B_token)[:, None] + (n * B_n)[None, :], mask=live_n, other=0.0)
        c = tl.load(C + (t * C_token)[:, None] + (n * C_n)[None, :], mask=live_n, other=0.0)
        # In float64, and kept with its rounding: a token that forgets everything takes a sum to
        # -1,000 and beyond, where float32 has no digits left for the small differences between
        # the tokens behind it.
        logs = (step * a).to(tl.float64)
        exact = tl.cumsum(logs, 0)
        sums = exact.to(tl.float32)
        rest = (exact - sums.to(tl.float64)).to(tl.float32)
        whole = tl.sum(logs, 0)
        between = (sums[:, None] - sums[None, :]) + (rest[:, None] - rest[None, :])
        decay = tl.where(i[:, None] >= i[None, :], tl.exp(tl.minimum(between, 0.0)), 0.0)
        scores = tl.dot(c, tl.trans(b), input_precision=FLOAT32_DOT) * decay * step[None, :]
        out = tl.dot(c.to(tl.float32), tl.trans(h), input_precision=FLOAT32_DOT)
        out = out * tl.exp(sums)[:, None] + d * u
        out = tl.dot(scores, u, out, input_precision=FLOAT32_DOT)
        at = y + (t * y_token)[:, None] + (p * y_dim)[None, :]
        tl.store(at, out.to(y.dtype.element_ty), mask=live_p)
        to_end = tl.exp((whole - exact).to(tl.float32)) * step
        added = tl.trans(u * to_end[:, None])
        h = h * tl.exp(whole.to(tl.float32))
        h = tl.dot(added, b.to(tl.float32), h, input_precision=FLOAT32_DOT)
    held = (p < if_so(page >= 0, HEAD_DIM))[:, None] & fits_n[None, :]
    kept = h.to(ssm_state.dtype.element_ty)
    tl.store(ssm_state + page * s_page + in_page, kept, mask=held)
