"""causal_attention in numba: of float32, and of bfloat16 if the processor has AVX2."""

from dataclasses import replace

import numba
import numpy as np
import torch
from jaxtyping import BFloat16, Float, Float32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.cpu.attend_blocks import Heads, Queries, attend_blocks
from hybridrt.kernels.cpu.attend_jobs import Sizes
from hybridrt.kernels.cpu.attend_lanes import attend_lanes
from hybridrt.kernels.cpu.bfloat16 import are_singles
from hybridrt.kernels.cpu.pack_tokens import Pages
from hybridrt.kernels.cpu.tile_registers import multiplies_tiles
from hybridrt.kernels.cpu.vectors import HAS_VECTORS
from hybridrt.kernels.reference import softmax_attention as reference
from hybridrt.kernels.reference.gather import EVERYTHING, Reach
from hybridrt.kernels.reference.softmax_attention import Softmax

FEWEST_QUERIES = 16
"""Of all heads of a key head: for fewer it takes longer to put keys into blocks, or lanes idle."""

ONE_BLOCK = torch.zeros(1, dtype=torch.int32)
"""The table of what stands in a page that holds all of it."""

MOST_BYTES = 2**24
"""Of blocks at once: of more, heads take turns, since new memory takes longer than used one."""

NO_QUERIES, NO_PAGES = Queries(0, 0, 0, 0), Pages(0, 0, 0, 0, 0)
"""Of the second part of queries, and of keys, that have one."""


def causal_attention(
    q: Float[Tensor, "heads queries head_dim_k"],
    k: Float[Tensor, "kv_heads tokens head_dim_k"],
    v: Float[Tensor, "kv_heads tokens head_dim_v"],
    softmax: Softmax,
    reach: Reach = EVERYTHING,
    first: int = 0,
) -> Float[Tensor, "heads queries head_dim_v"]:
    """See the reference, to which other dtypes and few queries are left."""
    if q.shape[0] // k.shape[0] * q.shape[1] >= FEWEST_QUERIES:
        if are_singles(q, k, v):
            return _of_singles(q, k, v, softmax, reach, first)
        if _are_pairs(q, k, v) and softmax.scale > 0:
            return _of_pairs(q, k, v, softmax, reach, first)
    return reference.causal_attention(q, k, v, softmax, reach, first)


def _of_singles(
    q: Float32[Tensor, "heads queries head_dim_k"],
    k: Float32[Tensor, "kv_heads tokens head_dim_k"],
    v: Float32[Tensor, "kv_heads tokens head_dim_v"],
    softmax: Softmax,
    reach: Reach,
    first: int,
) -> Float32[Tensor, "heads queries head_dim_v"]:
    """Keys and values are as in a page that holds all of them."""
    sizes = Sizes(
        q_token=q.stride(1),
        q_head=q.stride(0),
        k=k.shape[2],
        more=0,
        v=v.shape[2],
        kv_heads=k.shape[0],
        block_size=first + k.shape[1],
        k_block=0,
        k_head=k.stride(0),
        k_token=k.stride(1),
        more_block=0,
        more_token=0,
        v_block=0,
        v_head=v.stride(0),
        v_token=v.stride(1),
        window=reach.window or 0,
        chunked=reach.chunked,
        values_are_keys=False,
    )
    queries, before = q.shape[1], 4 * first  # addresses are those that token 0 would have
    out = torch.empty(queries, len(q), v.shape[2])
    sinks = None if softmax.sinks is None else softmax.sinks.float().contiguous()
    attend_lanes(
        *(q.data_ptr(), k.data_ptr() - before * k.stride(1), 0),
        *(v.data_ptr() - before * v.stride(1), ONE_BLOCK.data_ptr()),
        *(first + k.shape[1] - queries, queries, len(q), sizes),
        *(np.float32(softmax.scale), np.float32(softmax.softcap or 0)),
        *(0 if sinks is None else sinks.data_ptr(), out.data_ptr(), numba.get_num_threads()),
    )
    return out.transpose(0, 1)


def _of_pairs(
    q: BFloat16[Tensor, "heads queries head_dim_k"],
    k: BFloat16[Tensor, "kv_heads tokens head_dim_k"],
    v: BFloat16[Tensor, "kv_heads tokens head_dim_v"],
    softmax: Softmax,
    reach: Reach,
    first: int,
) -> BFloat16[Tensor, "heads queries head_dim_v"]:
    out = torch.empty(q.shape[1], q.shape[0], v.shape[2], dtype=q.dtype)
    attend_row((q.transpose(0, 1),), (k,), v, softmax, reach, first, out)
    return out.transpose(0, 1)


def attend_row(
    q: tuple[BFloat16[Tensor, "queries heads _"], ...],
    k: tuple[BFloat16[Tensor, "kv_heads tokens _"], ...],
    v: BFloat16[Tensor, "kv_heads tokens head_dim_v"],
    softmax: Softmax,
    reach: Reach,
    first: int,
    out: BFloat16[Tensor, "queries heads head_dim_v"],
    batch: Rows | None = None,
) -> None:
    """`causal_attention` of what `takes_pages`, into `out`; queries and keys have one or two parts.

    Keys and values, from the sequence's `first` token on, are as in a page that holds all of them.
    A `batch` has this row alone, of which it tells the length, and behind it may be padding.
    """
    softmax, queries, tokens = _with_singles(softmax), len(out), v.shape[1]
    if batch is None:
        lengths = torch.tensor([[queries], [first + tokens - queries]])
    else:
        lengths = batch.query_lens, batch.context_lens
    # Addresses are those that token 0 would have.
    k_pages = [_pages_of(part[None], first) for part in k]
    q_parts = [_queries_of(part) for part in q]
    attend_blocks(
        *(q_parts[0], NO_QUERIES if len(q) == 1 else q_parts[1]),
        *(k_pages[0], NO_PAGES if len(k) == 1 else k_pages[1]),
        *(_pages_of(v[None], first), ONE_BLOCK.data_ptr(), 0),
        *(lengths[0].data_ptr(), lengths[1].data_ptr(), 0, 1, queries),
        *_heads_and_more(sum(part.shape[2] for part in k), v[None], first, softmax, reach, out),
    )


def attend_rows(
    q: BFloat16[Tensor, "tokens heads head_dim_k"],
    k: BFloat16[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: BFloat16[Tensor, "blocks kv_heads block_size head_dim_v"],
    pages: TokenPages,
    batch: Rows,
    softmax: Softmax,
    reach: Reach,
    out: BFloat16[Tensor, "tokens heads head_dim_v"],
) -> None:
    """Attention of all prefill rows, of what `takes_pages`, into `out`; zeros for padding."""
    softmax, table = _with_singles(softmax), pages.page_table
    attend_blocks(
        *(_queries_of(q), NO_QUERIES, _pages_of(k), NO_PAGES, _pages_of(v)),
        *(table.data_ptr(), table.stride(0)),
        *(batch.query_lens.data_ptr(), batch.context_lens.data_ptr(), batch.num_decodes),
        *(batch.num_rows, q.shape[0]),
        *_heads_and_more(k.shape[3], v, 0, softmax, reach, out),
    )


def _with_singles(softmax: Softmax) -> Softmax:
    """With sinks as `attend_blocks` reads them, which whoever gives their address has to hold."""
    if softmax.sinks is None:
        return softmax
    return replace(softmax, sinks=softmax.sinks.float().contiguous())


def _heads_and_more(
    k_size: int,
    v: BFloat16[Tensor, "blocks kv_heads block_size head_dim_v"],
    first: int,
    softmax: Softmax,
    reach: Reach,
    out: BFloat16[Tensor, "tokens heads head_dim_v"],
) -> tuple[Heads, float, float, int, int, int]:
    """The last arguments of `attend_blocks`; `first` tokens of a page aren't there."""
    heads = Heads(
        q_heads=out.shape[1],
        kv_heads=v.shape[1],
        page_size=first + v.shape[2],
        k=k_size,
        v=v.shape[3],
        window=reach.window or 0,
        chunked=reach.chunked,
        tiles=multiplies_tiles(),
        most_bytes=MOST_BYTES,
    )
    sinks = 0 if softmax.sinks is None else softmax.sinks.data_ptr()
    at_out, threads = out.data_ptr(), numba.get_num_threads()
    return heads, softmax.scale, softmax.softcap or 0.0, sinks, at_out, threads


def takes_pages(
    q: tuple[Float[Tensor, "tokens heads _"], ...],
    k: tuple[Shaped[Tensor, "*blocks kv_heads _ _"], ...],
    v: Shaped[Tensor, "*blocks kv_heads _ head_dim_v"],
    softmax: Softmax,
) -> bool:
    """Whether `attend_row` or `attend_rows` takes these: pairs of bfloat16."""
    even = all(part.shape[-1] % 2 == 0 for part in k)
    return even and softmax.scale > 0 and _are_pairs(*q, *k, v)


def _queries_of(part: BFloat16[Tensor, "queries heads dim"]) -> Queries:
    return Queries(part.data_ptr(), part.stride(1), part.stride(0), part.shape[2])


def _pages_of(part: BFloat16[Tensor, "blocks kv_heads block_size dim"], first: int = 0) -> Pages:
    """Where they stand; `first` tokens of a page aren't there."""
    block, head, token, _ = part.stride()
    return Pages(part.data_ptr() - part.itemsize * first * token, block, head, token, part.shape[3])


def _are_pairs(*tensors: Tensor) -> bool:
    """Whether our kernel takes these: pairs of bfloat16, those of a token side by side."""
    return (
        HAS_VECTORS
        and all(tensor.dtype == torch.bfloat16 and tensor.stride(-1) == 1 for tensor in tensors)
        and tensors[0].shape[-1] % 2 == 0
    )
