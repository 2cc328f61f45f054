"""ssd in Triton: what chunks add to states, the states between them, then y of all chunks."""

import torch
import triton
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.triton.launch import block_of
from hybridrt.kernels.triton.ssd_chunks import add_chunks, join_chunks
from hybridrt.kernels.triton.ssd_decays import sum_decays
from hybridrt.kernels.triton.ssd_outputs import write_outputs
from hybridrt.kernels.triton.ssd_step import run_step
from hybridrt.kernels.triton.states import prefill_turns

# Both are as long for every row, so that a row gives the same bits in any company. A chunk has a
# state in memory; blocks within it are joined as they are read.
_CHUNK = 256  # tokens at most
_BLOCK, _FLOAT32_BLOCK = 64, 32  # products of float32 take three parts of each side in registers
_STATES, _FLOAT32_STATES = 8192, 4096  # of a program: 64 for each of its threads, or 32
_JOINED = 1024  # numbers of a state that a program takes through a row
_HEADS, _ROWS = 32, 64  # of a program that sums decays, and those it looks at together
_STATE_PARTS = 3  # of bfloat16: all digits of a float32
_OUTPUT_PARTS = 2  # y has no more digits in bfloat16 than one


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
    if batch.num_decodes:
        _decode(x, dt, A, B, C, D, ssm_state, y, pages, batch.num_decodes)
    if batch.num_decodes < batch.num_rows:
        _prefill(x, dt, A, B, C, D, ssm_state, y, pages, initial_pages, batch, chunk_size)
    return y


def _decode(
    x: Float[Tensor, "tokens heads head_dim"],
    dt: Float[Tensor, "tokens heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    y: Float[Tensor, "tokens heads head_dim"],
    pages: Int64[Tensor, " rows"],
    num_decodes: int,
) -> None:
    inputs = (x, dt, A, B, C, D, ssm_state, y)
    strides = [stride for part in inputs for stride in part.stride()]
    heads, head_dim, size = ssm_state.shape[1:]
    block_n = block_of(size)
    block_p = min(block_of(head_dim), max(16, _FLOAT32_STATES // block_n))
    run_step[(triton.cdiv(head_dim, block_p), heads, num_decodes)](
        *(*inputs, pages, *strides),
        REPEATS=heads // B.shape[1],
        HEAD_DIM=head_dim,
        SIZE=size,
        BLOCK_P=block_p,
        BLOCK_N=block_n,
    )


def _prefill(
    x: Float[Tensor, "tokens heads head_dim"],
    dt: Float[Tensor, "tokens heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    y: Float[Tensor, "tokens heads head_dim"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    chunk_size: int,
) -> None:
    heads, head_dim, size = ssm_state.shape[1:]
    in_bfloat16 = all(part.dtype == torch.bfloat16 for part in (x, B, C))
    block = _BLOCK if in_bfloat16 else _FLOAT32_BLOCK
    chunk = min(_CHUNK, block_of(chunk_size, block))
    n, rows = batch.num_decodes, batch.num_rows - batch.num_decodes
    chunks = int(batch.query_lens[n:].sum()) // chunk + rows

    def scratch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=x.device)

    bounds = scratch(chunks, 2, dtype=torch.int32)
    sums = scratch(heads, x.shape[0], dtype=torch.float64)
    weights, decays = scratch(*sums.shape), scratch(chunks, heads)
    states = scratch(chunks, heads, head_dim, size)
    blocks = chunks * (chunk // block)
    sum_decays[(blocks, triton.cdiv(heads, _HEADS))](
        *(dt, A, batch.cu_seqlens_q, bounds, sums, weights),
        *(*dt.stride(), *A.stride(), sums.stride(0), heads, n, rows),
        CHUNK=chunk,
        BLOCK_T=block,
        BLOCK_H=min(_HEADS, block_of(heads, 1)),
        BLOCK_R=min(_ROWS, block_of(rows, 1)),
    )
    block_n = block_of(size)
    most = _STATES if in_bfloat16 else _FLOAT32_STATES
    block_p = min(block_of(head_dim), max(64 if in_bfloat16 else 16, most // block_n), 64)
    tile = {
        "REPEATS": heads // B.shape[1],
        "HEAD_DIM": head_dim,
        "SIZE": size,
        "BLOCK_P": block_p,
        "BLOCK_N": block_n,
        "BLOCK_T": block,
        "num_warps": 8 if block_p * block_n > _STATES else 4,
    }
    parts = heads * triton.cdiv(head_dim, block_p)
    add_chunks[(parts, chunks)](
        *(x, B, bounds, sums, weights, states, decays),
        *(*x.stride(), *B.stride(), sums.stride(0), heads),
        **tile,
        PARTS=_STATE_PARTS,
        num_stages=2,
    )
    for first, count, _ in prefill_turns(batch):
        join_chunks[(triton.cdiv(head_dim * size, _JOINED), heads, count)](
            *(states, decays, ssm_state, pages, initial_pages, batch.has_initial_state),
            *(batch.cu_seqlens_q, *ssm_state.stride(), heads, n, first),
            HEAD_DIM=head_dim,
            SIZE=size,
            CHUNK=chunk,
            BLOCK=_JOINED,
        )
    write_outputs[(parts, blocks)](
        *(x, dt, B, C, D, bounds, sums, weights, states, y),
        *(*x.stride(), *dt.stride(), *B.stride(), *C.stride(), *D.stride()),
        *(sums.stride(0), *y.stride(), heads),
        **tile,
        CHUNK=chunk,
        PARTS=_OUTPUT_PARTS,
        num_stages=2,
    )
