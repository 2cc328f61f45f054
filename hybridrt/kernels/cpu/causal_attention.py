"""causal_attention in numba, where the processor multiplies pairs of bfloat16."""

import numba
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.cpu.attend_blocks import Chunk, attend_blocks
from hybridrt.kernels.cpu.pack_tokens import pack_tokens
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.pairs import MULTIPLIES_PAIRS
from hybridrt.kernels.reference import softmax_attention as reference
from hybridrt.kernels.reference.gather import EVERYTHING, Reach
from hybridrt.kernels.reference.softmax_attention import Softmax

FEWEST_QUERIES = 16
"""Of all heads of a key head: for fewer it takes longer to put keys into blocks."""

MOST_BYTES = 2**24
"""Of blocks at once: of more, heads take turns, since new memory takes longer than used one."""


def causal_attention(
    q: Float[Tensor, "heads queries head_dim_k"],
    k: Float[Tensor, "kv_heads tokens head_dim_k"],
    v: Float[Tensor, "kv_heads tokens head_dim_v"],
    softmax: Softmax,
    reach: Reach = EVERYTHING,
    first: int = 0,
) -> Float[Tensor, "heads queries head_dim_v"]:
    """See the reference, to which all but bfloat16 is left."""
    heads, queries, k_size = q.shape
    kv_heads, tokens, v_size = v.shape
    group = heads // kv_heads
    if not (_takes(q, k, v) and softmax.scale > 0) or queries * group < FEWEST_QUERIES:
        return reference.causal_attention(q, k, v, softmax, reach, first)
    first_block = first // OUTPUTS
    blocks = (first + tokens - 1) // OUTPUTS + 1 - first_block
    at_once = max(1, min(kv_heads, MOST_BYTES // (2 * blocks * OUTPUTS * (k_size + v_size))))
    v_width = -(-v_size // OUTPUTS) * OUTPUTS
    k_blocks = np.empty((at_once, blocks, OUTPUTS * k_size // 2), np.uint32)
    v_blocks = np.empty((at_once, blocks, OUTPUTS * v_width // 2), np.uint32)
    out = torch.empty(queries, heads, v_size, dtype=q.dtype)
    sinks = torch.empty(0, dtype=torch.float32) if softmax.sinks is None else softmax.sinks.float()
    for start in range(0, kv_heads, at_once):
        some = slice(start, start + at_once)
        some_k, some_v = k[some], v[some]
        pack_tokens(
            *(some_k.data_ptr(), k.stride(0), k.stride(1), k_size),
            *(some_v.data_ptr(), v.stride(0), v.stride(1), v_size),
            *(len(some_k), tokens, first - first_block * OUTPUTS, k_blocks, v_blocks),
        )
        chunk = Chunk(
            first_head=start * group,
            heads=len(some_k) * group,
            group=group,
            queries=queries,
            position=first + tokens - queries,
            first_block=first_block,
            k=k_size,
            v=v_size,
            q_head=q.stride(0),
            q_token=q.stride(1),
            window=reach.window or 0,
            chunked=reach.chunked,
        )
        attend_blocks(  # pyright: ignore[reportCallIssue]
            q.data_ptr(),
            k_blocks,
            v_blocks,
            chunk,
            np.float32(softmax.scale),
            np.float32(softmax.softcap or 0),
            sinks.numpy(),
            out.view(torch.uint16).numpy(),
            numba.get_num_threads(),
        )
    return out.transpose(0, 1)


def _takes(*tensors: Tensor) -> bool:
    """Whether these are pairs of bfloat16, those of a token side by side."""
    return (
        MULTIPLIES_PAIRS
        and all(tensor.dtype == torch.bfloat16 and tensor.stride(-1) == 1 for tensor in tensors)
        and tensors[0].shape[-1] % 2 == 0
    )
