"""gated_delta_rule in Triton: a program runs some of a head's value channels through time."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.triton.launch import block_of, jit
from hybridrt.kernels.triton.states import if_so, pages_of, prefill_turns, tokens_of

# Value channels of a program, its warps, and the tokens whose inputs are on their way together.
# One warp sums over key channels without waiting for others, which a long row needs; a decode
# step is bound by its states.
_PREFILL = (8, 1, 4)
_DECODE = (32, 4, 1)


def gated_delta_rule(
    q: Float[Tensor, "tokens key_heads head_k_dim"],
    k: Float[Tensor, "tokens key_heads head_k_dim"],
    v: Float[Tensor, "tokens heads head_v_dim"],
    g: Float[Tensor, "tokens heads"] | Float[Tensor, "tokens heads head_k_dim"],
    beta: Float[Tensor, "tokens heads"],
    ssm_state: Float[Tensor, "pages heads head_k_dim head_v_dim"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float[Tensor, "tokens heads head_v_dim"]:
    """See `hybridrt.kernels.gated_delta_rule`."""
    y = torch.empty_like(v)
    heads, key_dim, value_dim = ssm_state.shape[1:]
    g_strides = g.stride() if g.dim() == 3 else (*g.stride(), 0)
    inputs = (q, k, v, g, beta, ssm_state, y)
    tensors = (q, k, v, beta, ssm_state, y)
    strides = [*g_strides, *(stride for part in tensors for stride in part.stride())]

    def launch(first: int, count: int, how: tuple[int, int, int], is_decode: bool) -> None:
        block_v, warps, tokens = how
        _run[(triton.cdiv(value_dim, block_v), heads, count)](
            *inputs,
            pages,
            initial_pages,
            batch.has_initial_state,
            batch.cu_seqlens_q,
            *strides,
            first,
            REPEATS=heads // k.shape[1],
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            PER_CHANNEL=g.dim() == 3,
            IS_DECODE=is_decode,
            TOKENS=tokens,
            BLOCK_K=block_of(key_dim, 1),
            BLOCK_V=block_v,
            num_warps=warps,
        )

    if batch.num_decodes:
        launch(0, batch.num_decodes, _DECODE, True)
    for first, count, _ in prefill_turns(batch):
        launch(first, count, _PREFILL, False)
    return y


@jit(do_not_specialize=["first_row"])
@no_type_check
def _run(
    q,  # [tokens, key_heads, KEY_DIM]
    k,  # [tokens, key_heads, KEY_DIM]
    v,  # [tokens, key_heads * REPEATS, VALUE_DIM]
    g,  # [tokens, key_heads * REPEATS], or with KEY_DIM behind
    beta,  # [tokens, key_heads * REPEATS]
    ssm_state,  # [pages, key_heads * REPEATS, KEY_DIM, VALUE_DIM]
    y,  # [tokens, key_heads * REPEATS, VALUE_DIM]
    pages,  # [rows]
    initial_pages,  # [rows]
    has_initial_state,  # [rows]
    cu_seqlens,  # [rows + 1]
    g_token,
    g_head,
    g_dim,
    q_token,
    q_head,
    q_dim,
    k_token,
    k_head,
    k_dim,
    v_token,
    v_head,
    v_dim,
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
    PER_CHANNEL: tl.constexpr,
    IS_DECODE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, IS_DECODE)
    initial, page = pages_of(row, pages, initial_pages, has_initial_state, IS_DECODE)
    in_v = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k = tl.arange(0, BLOCK_K).to(tl.int64)
    fits_v = in_v < VALUE_DIM
    # Keys are the last axis, which a warp's threads share out: sums over them are the most work.
    in_page = head * s_head + (in_v * s_v)[:, None] + (in_k * s_k)[None, :]
    there = fits_v[:, None] & (in_k < if_so(initial >= 0, KEY_DIM))[None, :]
    state = tl.load(ssm_state + initial * s_page + in_page, mask=there, other=0.0).to(tl.float32)
    q += head // REPEATS * q_head
    k += head // REPEATS * k_head
    v += head * v_head
    g += head * g_head
    beta += head * b_head
    y += head * y_head
    for first in range(start, stop, TOKENS):
        inputs = ()
        for i in tl.static_range(TOKENS):
            t = first + i
            live_k, live_v = in_k < if_so(t < stop, KEY_DIM), in_v < if_so(t < stop, VALUE_DIM)
            # Behind the last token g and k are zeros, which leave a state as it is.
            if PER_CHANNEL:
                log_decay = tl.load(g + t * g_token + in_k * g_dim, mask=live_k, other=0.0)
            else:
                log_decay = tl.load(g + t * g_token, mask=t < stop, other=0.0)
            inputs += (
                tl.load(q + t * q_token + in_k * q_dim, mask=live_k, other=0.0),
                tl.load(k + t * k_token + in_k * k_dim, mask=live_k, other=0.0),
                tl.load(v + t * v_token + in_v * v_dim, mask=live_v, other=0.0),
                log_decay,
                tl.load(beta + t * b_token, mask=t < stop, other=0.0),
            )
        for i in tl.static_range(TOKENS):
            query, key = inputs[5 * i].to(tl.float32), inputs[5 * i + 1].to(tl.float32)
            decay = tl.exp(inputs[5 * i + 3].to(tl.float32))
            # What q reads of the correction is (q . k) delta, so neither sum waits for the other.
            answer = tl.sum(state * (decay * key)[None, :], 1)
            read = tl.sum(state * (decay * query)[None, :], 1)
            delta = inputs[5 * i + 4].to(tl.float32) * (inputs[5 * i + 2].to(tl.float32) - answer)
            if PER_CHANNEL:
                state *= decay[None, :]
            else:
                state *= decay
            state += delta[:, None] * key[None, :]
            out = read + tl.sum(query * key, 0) * delta
            live_v = in_v < if_so(first + i < stop, VALUE_DIM)
            at = y + (first + i) * y_token + in_v * y_dim
            tl.store(at, out.to(y.dtype.element_ty), mask=live_v)
    held = fits_v[:, None] & (in_k < if_so(page >= 0, KEY_DIM))[None, :]
    kept = state.to(ssm_state.dtype.element_ty)
    tl.store(ssm_state + page * s_page + in_page, kept, mask=held)
