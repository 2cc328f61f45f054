"""paged_attention in numba: keys and values are read where they stand, without a copy.

Those of chunks in bfloat16 are put into blocks, and of what isn't float32 either they are gathered.
"""

import numba
import numpy as np
import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.cpu.attend import FEW_HEADS, attend, by_tiles
from hybridrt.kernels.cpu.attend_jobs import Sizes
from hybridrt.kernels.cpu.attend_lanes import attend_lanes
from hybridrt.kernels.cpu.bfloat16 import DTYPES, are_singles, is_readable, of_dtype
from hybridrt.kernels.cpu.causal_attention import attend_rows, causal_attention, takes_pages
from hybridrt.kernels.reference import paged_attention as reference
from hybridrt.kernels.reference.gather import Reach
from hybridrt.kernels.reference.softmax_attention import Softmax


def paged_attention(
    q: Float[Tensor, "tokens heads head_dim_k"],
    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    window: int | None = None,
    chunked: bool = False,
    sinks: Float[Tensor, " heads"] | None = None,
    softcap: float | None = None,
    k_scale: Float32[Tensor, "..."] | None = None,
    v_scale: Float32[Tensor, "..."] | None = None,
) -> Float[Tensor, "tokens heads head_dim_v"]:
    """See `hybridrt.kernels.paged_attention`. What is quantised, decode rows leave to it."""
    n = batch.num_decodes
    softmax, reach = Softmax(scale, sinks, softcap), Reach(window, chunked)
    decoded: Tensor | None = None
    if n and k_scale is None and is_readable(k) and is_readable(v):
        decoded = _decode(q[:n], k, v, pages, batch, softmax, reach)
        if n == len(q):
            return decoded
    kv = k, v, k_scale, v_scale
    if n and decoded is None:
        cache = reference.PagedKV(*kv)
        decoded = reference.attend_decodes(q[:n], cache, pages, batch, softmax, reach)
    out = torch.empty(*q.shape[:2], v.shape[-1], dtype=q.dtype)
    if decoded is not None:
        out[:n] = decoded
    if k_scale is None and are_singles(q, k, v):
        _attend_chunks(q, k, v, pages, batch, softmax, reach, out)
        return out
    if k_scale is None and takes_pages((q,), (k,), v, softmax):
        attend_rows(q, k, v, pages, batch, softmax, reach, out)
        return out
    stop = n
    for row in batch.prefills:
        stop = row.stop
        more = pages, row, softmax, reach, causal_attention
        queries = q[row.start : stop]
        out[row.start : stop] = reference.attend_chunk(queries, reference.PagedKV(*kv), *more)
    out[stop:] = 0
    return out


def _attend_chunks(
    q: Float32[Tensor, "tokens heads head_dim_k"],
    k: Float32[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Float32[Tensor, "blocks kv_heads block_size head_dim_v"],
    pages: TokenPages,
    batch: Rows,
    softmax: Softmax,
    reach: Reach,
    out: Float32[Tensor, "tokens heads head_dim_v"],
) -> None:
    """Fills `out` behind the decode rows: what prefill rows attend to, and zeros for padding."""
    sinks = None if softmax.sinks is None else softmax.sinks.float().contiguous()
    sizes, stop = _sizes(q, k, v, reach), batch.num_decodes
    for row in batch.prefills:
        stop = row.stop
        attend_lanes(
            *(q[row.start :].data_ptr(), k.data_ptr(), 0, v.data_ptr()),
            *(pages.page_table[row.row].data_ptr(), row.context, stop - row.start),
            *(q.shape[1], sizes, np.float32(softmax.scale), np.float32(softmax.softcap or 0)),
            *(0 if sinks is None else sinks.data_ptr(), out[row.start :].data_ptr()),
            numba.get_num_threads(),
        )
    out[stop:] = 0


def _decode(
    q: Float[Tensor, "rows heads head_dim_k"],
    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
    pages: TokenPages,
    batch: Rows,
    softmax: Softmax,
    reach: Reach,
) -> Float[Tensor, "rows heads head_dim_v"]:
    sinks = None if softmax.sinks is None else softmax.sinks.float().contiguous()
    dtype = q.dtype
    if dtype not in DTYPES:
        q = q.float()
    if q.stride(2) != 1:
        q = q.contiguous()
    out = torch.empty(*q.shape[:2], v.shape[-1], dtype=q.dtype)
    attend(
        by_tiles(q, k, v) if q.shape[1] > FEW_HEADS * k.shape[1] else None,
        of_dtype(q),
        q.data_ptr(),
        of_dtype(k),
        k.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        pages.page_table.data_ptr(),
        pages.page_table.stride(0),
        batch.context_lens.data_ptr(),
        *q.shape[:2],
        _sizes(q, k, v, reach),
        np.float32(softmax.scale),
        np.float32(softmax.softcap or 0),
        0 if sinks is None else sinks.data_ptr(),
        out.data_ptr(),
        numba.get_num_threads(),
    )
    return out.to(dtype)


def _sizes(
    q: Float[Tensor, "rows heads head_dim_k"],
    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
    reach: Reach,
) -> Sizes:
    """Of a layer's cache, made once and kept on its keys."""
    about = q.stride(), v.shape[-1], v.stride(), k.data_ptr() == v.data_ptr(), reach
    kept = getattr(k, "kept_sizes", None)
    if kept is None or kept[0] != about:
        kept = about, _measure(q, k, v, reach)
        k.kept_sizes = kept  # pyright: ignore[reportAttributeAccessIssue]
    return kept[1]


def _measure(q: Tensor, k: Tensor, v: Tensor, reach: Reach) -> Sizes:
    return Sizes(
        q_token=q.stride(0),
        q_head=q.stride(1),
        k=k.shape[-1],
        more=0,
        v=v.shape[-1],
        kv_heads=k.shape[1],
        block_size=k.shape[2],
        k_block=k.stride(0),
        k_head=k.stride(1),
        k_token=k.stride(2),
        more_block=0,
        more_token=0,
        v_block=v.stride(0),
        v_head=v.stride(1),
        v_token=v.stride(2),
        window=reach.window or 0,
        chunked=reach.chunked,
        values_are_keys=k.data_ptr() == v.data_ptr(),
    )
