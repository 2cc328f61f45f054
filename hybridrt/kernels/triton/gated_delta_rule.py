"""gated_delta_rule in Triton: states go from chunk to chunk, all else is done for all at once."""

from functools import partial

import torch
import triton
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.triton.delta_answers import answer_chunks
from hybridrt.kernels.triton.delta_chunks import run_chunks
from hybridrt.kernels.triton.delta_solve import solve_chunks
from hybridrt.kernels.triton.delta_step import run_step
from hybridrt.kernels.triton.launch import block_of
from hybridrt.kernels.triton.states import prefill_turns

# As long for every row, so that a row gives the same bits in any company.
CHUNK = 64
_VALUES, _STATES = 32, 4096  # value channels of a program at most, and numbers of a state
_ANSWERS = 128  # value channels of a program that has no state
_CHANNELS, _SOLVED = 64, 32  # of a product that goes through them, as registers have room


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
    """See `hybridrt.kernels.gated_delta_rule`. Prefills take q and k in float32."""
    y = torch.empty_like(v)
    heads, key_dim, value_dim = ssm_state.shape[1:]
    g_strides = g.stride() if g.dim() == 3 else (*g.stride(), 0)
    sizes = {
        "REPEATS": heads // k.shape[1],
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "PER_CHANNEL": g.dim() == 3,
    }
    block_k = block_of(key_dim)
    read_strides = (*q.stride(), *k.stride(), *g_strides)
    value_strides = (*v.stride(), *ssm_state.stride(), *y.stride())
    n, num_rows = batch.num_decodes, batch.num_rows
    if n:
        run_step[(triton.cdiv(value_dim, _VALUES), heads, n)](
            *(q, k, g, beta, v, ssm_state, y, pages),
            *(*read_strides, *beta.stride(), *value_strides),
            **sizes,
            BLOCK_K=block_k,
            BLOCK_V=_VALUES,
        )
    if n == num_rows:
        return y
    # As layers give them. In bfloat16, at a model's sizes, an H200 accessed memory out of bounds.
    q, k = q.float(), k.float()
    read_strides = (*q.stride(), *k.stride(), *g_strides)
    # What needs no state comes first, for chunks of all rows at once, those that follow too; and
    # what no state needs comes last. A row's chunks have slots from `start // CHUNK + row` on:
    # no row's end behind where those of the next begin.
    slots, channels = len(v) // CHUNK + num_rows, g.shape[2:]
    room = partial(torch.empty, dtype=torch.float32, device=v.device)
    of_state = room(slots, heads, CHUNK, key_dim)
    of_values = room(slots, heads, CHUNK, value_dim)
    to_end, whole = room(slots, heads, CHUNK, *channels), room(slots, heads, *channels)
    seen = room(slots, heads, CHUNK, CHUNK if channels else 0)
    # Queries read states with the digits that y has; float16 has no room for large ones.
    kept = torch.bfloat16 if v.dtype == torch.bfloat16 else torch.float32
    states = room(slots, heads, key_dim, value_dim, dtype=kept)
    longest = triton.cdiv(int(batch.query_lens[n:].max()), CHUNK)
    solve_chunks[(longest, heads, num_rows - n)](
        *(q, k, v, g, beta, of_state, of_values, to_end, whole, seen, batch.cu_seqlens_q),
        *(*read_strides, *beta.stride(), *v.stride()),
        n,
        **sizes,
        BLOCK_K=16 if channels else _SOLVED,
        BLOCK_D=_CHANNELS if channels else _SOLVED,
        HALF=CHUNK // 2,
        num_warps=4,
    )
    block_v = min(_VALUES, block_of(value_dim), max(16, _STATES // block_k))
    for first, count, _ in prefill_turns(batch):
        run_chunks[(triton.cdiv(value_dim, block_v), heads, count)](
            *(k, of_state, of_values, to_end, whole, states, ssm_state),
            *(pages, initial_pages, batch.has_initial_state, batch.cu_seqlens_q),
            *(*k.stride(), *ssm_state.stride()),
            first,
            **sizes,
            HALF_K=max(16, block_k // 2),
            BLOCK_V=block_v,
            BLOCK_T=CHUNK,
            num_warps=4,
            num_stages=2 if block_k <= 128 else 1,
        )
    block_v = min(_ANSWERS, block_of(value_dim))
    answer_chunks[(longest * triton.cdiv(value_dim, block_v), heads, num_rows - n)](
        *(q, k, g, of_values, states, seen, y, batch.cu_seqlens_q),
        *(*read_strides, *y.stride()),
        n,
        **sizes,
        BLOCK_K=min(_CHANNELS, block_k),
        BLOCK_V=block_v,
        BLOCK_T=CHUNK,
        num_warps=4,
        num_stages=2,
    )
    return y
