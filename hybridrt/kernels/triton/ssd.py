"""ssd in Triton: a program runs a part of a head through a row's chunks."""

import torch
import triton
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.triton.launch import block_of
from hybridrt.kernels.triton.ssd_chunks import run_chunks
from hybridrt.kernels.triton.ssd_step import run_step
from hybridrt.kernels.triton.states import prefill_turns

# Products of float32 take three parts of each side in registers: larger tiles would not fit.
_LONGEST_CHUNK = 32
_MOST_STATES = 4096  # of a program: 32 for each of its threads


def ssd(
    x: Float[Tensor, "tokens heads head_dim"],
    dt: Float[Tensor, "tokens heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    chunk_size: int,
) -> Float[Tensor, "tokens heads head_dim"]:
    """See `hybridrt.kernels.ssd`."""
    y = torch.empty_like(x)
    heads, head_dim, size = ssm_state.shape[1:]
    inputs = (x, dt, A, B, C, D, ssm_state, y)
    strides = [stride for part in inputs for stride in part.stride()]
    block_n = block_of(size)
    block_p = min(block_of(head_dim), max(16, _MOST_STATES // block_n))
    sizes = {"REPEATS": heads // B.shape[1], "HEAD_DIM": head_dim, "SIZE": size}
    blocks = {"BLOCK_P": block_p, "BLOCK_N": block_n}
    n, parts = batch.num_decodes, triton.cdiv(head_dim, block_p)
    if n:
        run_step[(parts, heads, n)](*inputs, pages, *strides, **sizes, **blocks)
    # As long for every row, so that a row gives the same bits in any company.
    chunk = min(_LONGEST_CHUNK, block_of(chunk_size))
    for first, count, _ in prefill_turns(batch):
        run_chunks[(parts, heads, count)](
            *inputs,
            pages,
            initial_pages,
            batch.has_initial_state,
            batch.cu_seqlens_q,
            *strides,
            first,
            **sizes,
            **blocks,
            BLOCK_T=chunk,
        )
    return y
