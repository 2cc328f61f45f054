"""ssd in Triton: what chunks add to states, the states between them, then y of all chunks."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.triton.launch import block_of, cdiv
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
_FLOAT32_SIZE = 64  # of B and C in registers
_ADD_STAGES, _OUTPUT_STAGES = 2, 1  # of loads that are under way: more take shared memory
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
    run_step[(cdiv(head_dim, block_p), heads, num_decodes)](
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

    bounds, kept = scratch(chunks, 2, dtype=torch.int32), scratch(chunks, heads)
    of_tokens, states = scratch(chunks, heads, 4, chunk), scratch(chunks, heads, head_dim, size)
    blocks = chunks * (chunk // block)
    sum_decays[(blocks, cdiv(heads, _HEADS))](
        *(dt, A, batch.cu_seqlens_q, bounds, of_tokens),
        *(*dt.stride(), *A.stride(), heads, n, rows),
        CHUNK=chunk,
        BLOCK_T=block,
        BLOCK_H=min(_HEADS, block_of(heads, 1)),
        BLOCK_R=min(_ROWS, block_of(rows, 1)),
    )
    sizes = {"HEAD_DIM": head_dim, "SIZE": size, "CHUNK": chunk}
    tile = {**sizes, "REPEATS": heads // B.shape[1], "BLOCK_T": block}
    block_n = block_of(size)
    block_p = min(block_of(head_dim), 64 if in_bfloat16 else max(16, _FLOAT32_STATES // block_n))
    add_chunks[(heads * cdiv(head_dim, block_p), chunks)](
        *(x, B, bounds, of_tokens, states, kept, *x.stride(), *B.stride(), heads),
        **tile,
        PARTS=_STATE_PARTS,
        num_stages=_ADD_STAGES,
        BLOCK_P=block_p,
        BLOCK_N=block_n,
        num_warps=8 if block_p * block_n > _STATES else 4,
    )
    for first, count, _ in prefill_turns(batch):
        join_chunks[(cdiv(head_dim * size, _JOINED), heads, count)](
            *(states, kept, ssm_state, pages, initial_pages, batch.has_initial_state),
            *(batch.cu_seqlens_q, *ssm_state.stride(), heads, n, first),
            **sizes,
            BLOCK=_JOINED,
        )
    block_p = min(block_of(head_dim), block)
    write_outputs[(heads * cdiv(head_dim, block_p), blocks)](
        *(x, B, C, D, bounds, of_tokens, states, y),
        *(*x.stride(), *B.stride(), *C.stride(), *D.stride(), *y.stride(), heads),
        **tile,
        PARTS=_OUTPUT_PARTS,
        num_stages=_OUTPUT_STAGES,
        BLOCK_P=block_p,
        BLOCK_N=block_n if in_bfloat16 else min(block_n, _FLOAT32_SIZE),
    )
