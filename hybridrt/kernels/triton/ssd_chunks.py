"""ssd's kernels for the states of prefill rows: what chunks add, and the states between them."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import kernel, wait_for_earlier
from hybridrt.kernels.triton.products import add_product
from hybridrt.kernels.triton.ssd_decays import LOG, WEIGHT, chunk_of
from hybridrt.kernels.triton.states import if_so, pages_of, tokens_of


@kernel
@no_type_check
def add_chunks(
    x,  # [tokens, heads, HEAD_DIM]
    B,  # [tokens, heads // REPEATS, SIZE]
    bounds,  # [chunks, 2]
    of_tokens,  # [chunks, heads, 4, CHUNK]
    states,  # [chunks, heads, HEAD_DIM, SIZE]
    decays,  # [chunks, heads]
    x_token,
    x_head,
    x_dim,
    B_token,
    B_group,
    B_n,
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
    """What a chunk adds to some channels of a head's state, and how much it leaves of it."""
    wait_for_earlier()
    P_BLOCKS: tl.constexpr = (HEAD_DIM + BLOCK_P - 1) // BLOCK_P
    chunk = tl.program_id(1).to(tl.int64)
    first = tl.load(bounds + 2 * chunk).to(tl.int64)
    stop = tl.load(bounds + 2 * chunk + 1).to(tl.int64)
    if first >= stop:
        return
    head = (tl.program_id(0) // P_BLOCKS).to(tl.int64)
    p = tl.program_id(0) % P_BLOCKS * BLOCK_P + tl.arange(0, BLOCK_P)
    n, i = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_T)
    fits_p, fits_n = p < HEAD_DIM, n < SIZE
    p, n = p.to(tl.int64), n.to(tl.int64)
    x += head * x_head
    B += head // REPEATS * B_group
    of_tokens += (chunk * heads + head) * (4 * CHUNK)
    h = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    whole = tl.full([], 0.0, tl.float32)
    log_at = of_tokens + LOG * CHUNK + BLOCK_T - 1
    log = tl.load(log_at)
    for block in range(first, stop, BLOCK_T):
        t = block + i
        live = t < stop
        weight = tl.load(of_tokens + WEIGHT * CHUNK + (block - first) + i)
        at = x + (p * x_dim)[:, None] + (t * x_token)[None, :]
        u = tl.load(at, mask=fits_p[:, None] & live[None, :], other=0.0).to(tl.float32)
        at = B + (t * B_token)[:, None] + (n * B_n)[None, :]
        b = tl.load(at, mask=live[:, None] & fits_n[None, :], other=0.0)
        whole += log
        h = h * tl.exp2(log)
        # The next block's, a round ahead of its use.
        log_at += BLOCK_T
        log = tl.load(log_at, mask=block + BLOCK_T < stop, other=0.0)
        h = add_product(u * weight[None, :], b, h, PARTS)
    at = chunk * heads + head
    tl.store(decays + at, tl.exp2(whole))
    at = states + at * (HEAD_DIM * SIZE) + (p * SIZE)[:, None] + n[None, :]
    tl.store(at, h, mask=fits_p[:, None] & fits_n[None, :])


@kernel(do_not_specialize=["num_decodes", "first_row"])
@no_type_check
def join_chunks(
    states,  # [chunks, heads, HEAD_DIM, SIZE]
    decays,  # [chunks, heads]
    ssm_state,  # [pages, heads, HEAD_DIM, SIZE]
    pages,  # [rows]
    initial_pages,  # [rows]
    has_initial_state,  # [rows]
    cu_seqlens,  # [rows + 1]
    s_page,
    s_head,
    s_dim,
    s_n,
    heads,
    num_decodes,
    first_row,
    HEAD_DIM: tl.constexpr,
    SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A part of a head's state through a row: what a chunk adds becomes what it starts from."""
    wait_for_earlier()
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    initial, page = pages_of(row, pages, initial_pages, has_initial_state, False)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    fits = i < HEAD_DIM * SIZE
    p, n = (i // SIZE).to(tl.int64), (i % SIZE).to(tl.int64)
    in_page = head * s_head + p * s_dim + n * s_n
    there = i < if_so(initial >= 0, HEAD_DIM * SIZE)
    h = tl.load(ssm_state + initial * s_page + in_page, mask=there, other=0.0).to(tl.float32)
    count = (stop - start + CHUNK - 1) // CHUNK
    at = chunk_of(start, row, num_decodes, CHUNK) * heads + head
    states += at * (HEAD_DIM * SIZE) + i
    decays += at
    # Loaded a chunk ahead: no load could be moved to before a store.
    added = tl.load(states, mask=i < if_so(count > 0, HEAD_DIM * SIZE), other=0.0)
    decay = tl.load(decays, mask=count > 0, other=0.0)
    for chunk in range(0, count):
        following = states + heads * (HEAD_DIM * SIZE)
        decays += heads
        has_next = chunk + 1 < count
        limit = if_so(has_next, HEAD_DIM * SIZE)
        next_added = tl.load(following, mask=i < limit, other=0.0)
        next_decay = tl.load(decays, mask=has_next, other=0.0)
        tl.store(states, h, mask=fits)
        h = h * decay + added
        states, added, decay = following, next_added, next_decay
    held = i < if_so(page >= 0, HEAD_DIM * SIZE)
    tl.store(ssm_state + page * s_page + in_page, h.to(ssm_state.dtype.element_ty), mask=held)
