"""ssd's kernel for decode rows: one token of each."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import kernel, wait_for_earlier
from hybridrt.kernels.triton.states import if_so


@kernel
@no_type_check
def run_step(
    x,  # [tokens, heads, HEAD_DIM]
    dt,  # [tokens, heads]
    A,  # [heads]
    B,  # [tokens, heads // REPEATS, SIZE]
    C,  # [tokens, heads // REPEATS, SIZE]
    D,  # [heads]
    ssm_state,  # [pages, heads, HEAD_DIM, SIZE]
    y,  # [tokens, heads, HEAD_DIM]
    pages,  # [rows]
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
    REPEATS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Some channels of a head through one token of a row."""
    wait_for_earlier()
    row, head = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    page = tl.load(pages + row).to(tl.int64)
    p = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    fits_p, fits_n = p < HEAD_DIM, n < SIZE
    n = n.to(tl.int64)
    at = ssm_state + page * s_page + head * s_head + (p * s_dim)[:, None] + (n * s_n)[None, :]
    held = (p < if_so(page >= 0, HEAD_DIM))[:, None] & fits_n[None, :]
    h = tl.load(at, mask=held, other=0.0).to(tl.float32)
    step = tl.load(dt + row * dt_token + head * dt_head).to(tl.float32)
    u = tl.load(x + row * x_token + head * x_head + p * x_dim, mask=fits_p, other=0.0)
    u = u.to(tl.float32)
    group = head // REPEATS
    b = tl.load(B + row * B_token + group * B_group + n * B_n, mask=fits_n, other=0.0)
    c = tl.load(C + row * C_token + group * C_group + n * C_n, mask=fits_n, other=0.0)
    decay = tl.exp(step * tl.load(A + head * A_head).to(tl.float32))
    h = h * decay + (step * u)[:, None] * b.to(tl.float32)[None, :]
    d = tl.load(D + head * D_head).to(tl.float32)
    out = tl.sum(h * c.to(tl.float32)[None, :], 1) + d * u
    tl.store(at, h.to(ssm_state.dtype.element_ty), mask=held)
    at = y + row * y_token + head * y_head + p * y_dim
    tl.store(at, out.to(y.dtype.element_ty), mask=fits_p)
