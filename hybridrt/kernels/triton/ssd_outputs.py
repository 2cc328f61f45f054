"""ssd's last kernel for prefill rows: y, of a chunk's tokens and the state that it starts from."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.products import add_product
from hybridrt.kernels.triton.ssd_decays import LOG, REST, STEP


@kernel
@no_type_check
def write_outputs(
    x,  # [tokens, heads, HEAD_DIM]
    B,  # [tokens, heads // REPEATS, SIZE]
    C,  # [tokens, heads // REPEATS, SIZE]
    D,  # [heads]
    bounds,  # [chunks, 2]
    of_tokens,  # [chunks, heads, 4, CHUNK]
    states,  # [chunks, heads, HEAD_DIM, SIZE]
    y,  # [tokens, heads, HEAD_DIM]
    x_token,
    x_head,
    x_dim,
    B_token,
    B_group,
    B_n,
    C_token,
    C_group,
    C_n,
    D_head,
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

    `out` is what tokens before a block add to y. It goes from block to block as a state does:
    decays from a token to the end of its block, and over those behind it, are at most 1.
    """
    wait_for_earlier()
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
    fits_p = p < HEAD_DIM
    p, n = p.to(tl.int64), n.to(tl.int64)
    x += head * x_head + (p * x_dim)[None, :]
    B += head // REPEATS * B_group + (n * B_n)[:, None]
    C += head // REPEATS * C_group + (n * C_n)[None, :] + ((last + i) * C_token)[:, None]
    states += (chunk * heads + head) * (HEAD_DIM * SIZE) + n[:, None] + (p * SIZE)[None, :]
    logs = of_tokens + (chunk * heads + head) * (4 * CHUNK) + LOG * CHUNK
    rests, steps = logs + (REST - LOG) * CHUNK, logs + (STEP - LOG) * CHUNK
    live = last + i < stop
    # More than one part of `n` only where float32 has to be taken apart in registers.
    c = tl.load(C, mask=live[:, None] & (n < SIZE)[None, :], other=0.0)
    h = tl.load(states, mask=(n < SIZE)[:, None] & fits_p[None, :], other=0.0)
    out = add_product(c, h, tl.zeros([BLOCK_T, BLOCK_P], tl.float32), PARTS)
    if BLOCK_N < SIZE:
        for part in range(BLOCK_N, SIZE, BLOCK_N):
            fits_n = part + n < SIZE
            c_part = tl.load(C + part * C_n, mask=live[:, None] & fits_n[None, :], other=0.0)
            h = tl.load(states + part, mask=fits_n[:, None] & fits_p[None, :], other=0.0)
            out = add_product(c_part, h, out, PARTS)
    d = tl.load(D + head * D_head).to(tl.float32)
    for block in range(first, last + 1, BLOCK_T):
        t = block + i
        there = t < stop
        u = tl.load(x + (t * x_token)[:, None], mask=there[:, None] & fits_p[None, :], other=0.0)
        at = B + (t * B_token)[None, :]
        scores = _scores(c, C, at, live, there, C_n, B_n, n, SIZE, BLOCK_N)
        # To where an earlier block ends, but in the last one to each token.
        ends = tl.where(block < last, BLOCK_T - 1, i)
        log, rest = tl.load(logs + i), tl.load(rests + i)
        log_to, rest_to = tl.load(logs + ends), tl.load(rests + ends)
        between = (log_to[:, None] - log[None, :]) + (rest_to[:, None] - rest[None, :])
        decay = tl.where(ends[:, None] >= i[None, :], tl.exp2(tl.minimum(between, 0.0)), 0.0)
        scores *= decay * tl.load(steps + i)[None, :]
        # D x is one more product with a token's own x.
        scores += tl.where(i[:, None] == i[None, :], tl.where(block < last, 0.0, d), 0.0)
        out = add_product(scores, u, out * tl.exp2(log_to)[:, None], PARTS)
        logs, rests, steps = logs + BLOCK_T, rests + BLOCK_T, steps + BLOCK_T
    live_p = live[:, None] & fits_p[None, :]
    at = y + head * y_head + ((last + i) * y_token)[:, None] + (p * y_dim)[None, :]
    tl.store(at, out.to(y.dtype.element_ty), mask=live_p)


@jit
@no_type_check
def _scores(c, C, B, live, b_live, C_n, B_n, n, SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Each token's C with each one's B; `c` is the first part of C, read before."""
    b = tl.load(B, mask=(n < SIZE)[:, None] & b_live[None, :], other=0.0)
    scores = tl.dot(c, b, input_precision=FLOAT32_DOT)
    if BLOCK_N < SIZE:
        for part in range(BLOCK_N, SIZE, BLOCK_N):
            fits_n = part + n < SIZE
            c_part = tl.load(C + part * C_n, mask=live[:, None] & fits_n[None, :], other=0.0)
            b = tl.load(B + part * B_n, mask=fits_n[:, None] & b_live[None, :], other=0.0)
            scores = tl.dot(c_part, b, scores, input_precision=FLOAT32_DOT)
    return scores
