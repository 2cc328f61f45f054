"""ssd's last kernel for prefill rows: y, of a chunk's tokens and the state that it starts from."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit
from hybridrt.kernels.triton.split_products import add_product_with_split, add_split_product


@jit
@no_type_check
def write_outputs(
    x,  # [tokens, heads, HEAD_DIM]
    dt,  # [tokens, heads]
    B,  # [tokens, heads // REPEATS, SIZE]
    C,  # [tokens, heads // REPEATS, SIZE]
    D,  # [heads]
    bounds,  # [chunks, 2]
    sums,  # [heads, tokens]
    weights,  # [heads, tokens]
    states,  # [chunks, heads, HEAD_DIM, SIZE]
    y,  # [tokens, heads, HEAD_DIM]
    x_token,
    x_head,
    x_dim,
    dt_token,
    dt_head,
    B_token,
    B_group,
    B_n,
    C_token,
    C_group,
    C_n,
    D_head,
    sums_head,
    y_token,
    y_head,
    y_dim,
    heads,
    REPEATS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Some channels of a head, for a block of a chunk's tokens.

    `out` is what the state before a block adds to y, and goes from block to block as a state
    does: decays from any token to the end of its block, of whole blocks, and up to the last
    block's tokens are at most 1, so their products are exact. Only within that last block is
    there a decay for each pair of tokens.
    """
    P_BLOCKS: tl.constexpr = (HEAD_DIM + BLOCK_P - 1) // BLOCK_P
    BLOCKS: tl.constexpr = CHUNK // BLOCK_T
    chunk = (tl.program_id(1) // BLOCKS).to(tl.int64)
    first = tl.load(bounds + 2 * chunk).to(tl.int64)
    stop = tl.load(bounds + 2 * chunk + 1).to(tl.int64)
    last = first + tl.program_id(1) % BLOCKS * BLOCK_T
    if last >= stop:
        return
    head = (tl.program_id(0) // P_BLOCKS).to(tl.int64)
    p = tl.program_id(0) % P_BLOCKS * BLOCK_P + tl.arange(0, BLOCK_P)
    n, i = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_T)
    fits_p, fits_n = p < HEAD_DIM, n < SIZE
    p, n = p.to(tl.int64), n.to(tl.int64)
    x += head * x_head + (p * x_dim)[None, :]
    B += head // REPEATS * B_group + (n * B_n)[:, None]
    sums += head * sums_head
    weights += head * sums_head
    live = last + i < stop
    live_n = live[:, None] & fits_n[None, :]
    at = C + head // REPEATS * C_group + ((last + i) * C_token)[:, None] + (n * C_n)[None, :]
    c = tl.load(at, mask=live_n, other=0.0)
    at = states + (chunk * heads + head) * (HEAD_DIM * SIZE) + n[:, None] + (p * SIZE)[None, :]
    h = tl.load(at, mask=fits_n[:, None] & fits_p[None, :], other=0.0)
    out = add_product_with_split(tl.zeros([BLOCK_T, BLOCK_P], tl.float32), c, h, PARTS)
    for block in range(first, last, BLOCK_T):
        t = block + i
        b = tl.load(B + (t * B_token)[None, :], mask=fits_n[:, None], other=0.0)
        u = tl.load(x + (t * x_token)[:, None], mask=fits_p[None, :], other=0.0)
        scores = tl.dot(c, b, input_precision=FLOAT32_DOT) * tl.load(weights + t)[None, :]
        out = out * tl.exp2(tl.load(sums + block + BLOCK_T - 1).to(tl.float32))
        out = add_split_product(out, scores, u, PARTS)
    t = last + i
    at = B + (t * B_token)[None, :]
    b = tl.load(at, mask=fits_n[:, None] & live[None, :], other=0.0)
    live_p = live[:, None] & fits_p[None, :]
    u = tl.load(x + (t * x_token)[:, None], mask=live_p, other=0.0)
    step = tl.load(dt + t * dt_token + head * dt_head, mask=live, other=0.0).to(tl.float32)
    exact = tl.load(sums + t, mask=live, other=0.0)
    # Kept with its rounding: large sums have no digits for small differences; see `sum_decays`.
    log = exact.to(tl.float32)
    rest = (exact - log.to(tl.float64)).to(tl.float32)
    between = (log[:, None] - log[None, :]) + (rest[:, None] - rest[None, :])
    decay = tl.where(i[:, None] >= i[None, :], tl.exp2(tl.minimum(between, 0.0)), 0.0)
    scores = tl.dot(c, b, input_precision=FLOAT32_DOT) * decay * step[None, :]
    d = tl.load(D + head * D_head).to(tl.float32)
    out = out * tl.exp2(log)[:, None] + d * u.to(tl.float32)
    out = add_split_product(out, scores, u, PARTS)
    at = y + head * y_head + (t * y_token)[:, None] + (p * y_dim)[None, :]
    tl.store(at, out.to(y.dtype.element_ty), mask=live_p)
