"""gated_delta_rule in Triton: chunks are solved all at once, then a row goes through its own."""

import torch
import triton
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.triton.delta_chunks import run_chunks
from hybridrt.kernels.triton.delta_solve import solve_chunks
from hybridrt.kernels.triton.delta_step import run_step
from hybridrt.kernels.triton.launch import block_of
from hybridrt.kernels.triton.states import prefill_turns

# As long for every row, so that a row gives the same bits in any company. Products of float32
# take three parts of each side in registers: larger tiles would not fit.
CHUNK = 32
_VALUES, _STATES = 32, 4096  # value channels of a program at most, and numbers of a state
_WARPS = 8  # at most: each has 16 key channels of a chunk, or more of wide keys


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
    sizes = {
        "REPEATS": heads // k.shape[1],
        "KEY_DIM": key_dim,
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
            VALUE_DIM=value_dim,
            BLOCK_K=block_k,
            BLOCK_V=_VALUES,
        )
    if n == num_rows:
        return y
    # What needs no state comes first, for chunks of all rows at once, those that follow too.
    solved, seen = v.new_empty((2, len(v), heads, CHUNK), dtype=torch.float32)
    longest = triton.cdiv(int(batch.query_lens[n:].max()), CHUNK)
    solve_chunks[(longest, heads, num_rows - n)](
        *(q, k, g, beta, solved, seen, batch.cu_seqlens_q),
        *(*read_strides, *beta.stride(), *solved.stride()[:2]),
        n,
        **sizes,
        BLOCK_K=16,
        BLOCK_T=CHUNK,
        num_warps=2,  # a product's sides of 32 are no work for more
    )
    block_v = min(_VALUES, block_of(value_dim), max(16, _STATES // block_k))
    parts = min(_WARPS, block_k // 16)
    for first, count, _ in prefill_turns(batch):
        run_chunks[(triton.cdiv(value_dim, block_v), heads, count)](
            *(q, k, g, solved, seen, v, ssm_state, y),
            *(pages, initial_pages, batch.has_initial_state, batch.cu_seqlens_q),
            *(*read_strides, *solved.stride()[:2], *value_strides),
            first,
            **sizes,
            VALUE_DIM=value_dim,
            PARTS=parts,
            BLOCK_K=block_k // parts,
            BLOCK_V=block_v,
            BLOCK_T=CHUNK,
            num_warps=parts,
            num_stages=2,
        )
    return y
