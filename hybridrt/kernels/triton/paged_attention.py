"""paged_attention in Triton: one kernel for prefill tiles and for splits of a decode's context."""

from typing import NamedTuple

import torch
import triton
from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.triton.attention_tile import attend_tile
from hybridrt.kernels.triton.combine import combine, num_splits
from hybridrt.kernels.triton.launch import block_of, row_strides


class _Cache(NamedTuple):
    """Keys and values in pages, what multiplies them, and which of them a query sees."""

    k: Tensor
    v: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    pages: TokenPages
    window: int
    chunked: bool


class _Softmax(NamedTuple):
    scale: float
    sinks: Tensor | None
    softcap: float | None


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
    """See `hybridrt.kernels.paged_attention`."""
    cache = _Cache(k, v, k_scale, v_scale, pages, window or 0, chunked)
    softmax = _Softmax(scale, sinks, softcap)
    out = q.new_empty(q.shape[0], q.shape[1], v.shape[-1])
    n = batch.num_decodes
    if n:
        _decode(q, cache, batch, softmax, out)
    if n < batch.num_rows:
        lengths = batch.query_lens[n:]
        _launch(q, cache, batch, softmax, out, (n, batch.num_rows), int(lengths.max()))
        n += int(lengths.sum())
    if n < len(q):
        out[n:] = 0  # padding
    return out


def _decode(
    q: Float[Tensor, "tokens heads head_dim_k"],
    cache: _Cache,
    batch: Rows,
    softmax: _Softmax,
    out: Float[Tensor, "tokens heads head_dim_v"],
) -> None:
    """The decode rows: contexts in splits, where rows alone don't fill the device."""
    n, (_, heads, dim) = batch.num_decodes, out.shape
    kv_heads, block_size = cache.k.shape[1:3]
    most_tokens = cache.pages.page_table.shape[1] * block_size
    splits = num_splits(q, n * kv_heads, min(most_tokens, cache.window or most_tokens))
    if splits == 1:
        _launch(q, cache, batch, softmax, out, (0, n), 1)
        return
    parts = torch.empty(n, heads, splits, dim, dtype=torch.float32, device=q.device)
    logs = parts.new_empty(n, heads, splits)
    _launch(q, cache, batch, softmax, parts, (0, n), 1, splits, logs)
    combine(parts, logs, softmax.sinks, out[:n])


def _launch(
    q: Float[Tensor, "tokens heads head_dim_k"],
    cache: _Cache,
    batch: Rows,
    softmax: _Softmax,
    out: Float[Tensor, "..."],
    rows: tuple[int, int],
    most_queries: int,
    splits: int = 1,
    logs: Float32[Tensor, "decodes heads splits"] | None = None,
) -> None:
    """Some rows. `out` is the result, or with several splits what each of them found."""
    k, v, k_scale, v_scale, pages, window, chunked = cache
    kv_heads, block_size, dim_k = k.shape[1:]
    group, dim_v = q.shape[1] // kv_heads, v.shape[-1]
    blocks = block_of(dim_k), block_of(dim_v)
    block_m, block_n, warps, stages = _tile(most_queries, group, blocks, q.itemsize)
    grid = (triton.cdiv(most_queries * group, block_m), rows[1] - rows[0], kv_heads * splits)
    scales = 0 if k_scale is None else 1 if k_scale.dim() == 1 else 2
    attend_tile[grid](
        q,
        k,
        v,
        k_scale,
        v_scale,
        softmax.sinks,
        pages.page_table,
        batch.seq_lens,
        batch.cu_seqlens_q,
        out,
        logs,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *row_strides(k_scale if scales == 2 else None, 3),
        *row_strides(v_scale if scales == 2 else None, 3),
        pages.page_table.stride(0),
        *out.stride()[:2],
        out.stride(-1),
        softmax.scale,
        softmax.softcap or 1.0,
        rows[0],
        splits,
        GROUP=group,
        BLOCK_SIZE=block_size,
        DIM_K=dim_k,
        DIM_V=dim_v,
        WINDOW=window,
        CHUNKED=chunked,
        SCALES=scales,
        HAS_SINKS=softmax.sinks is not None,
        HAS_CAP=softmax.softcap is not None,
        IN_SPLITS=splits > 1,
        SPLIT_LOOP=most_queries > 1 and window == 0,
        BLOCK_K=blocks[0],
        BLOCK_V=blocks[1],
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=warps,
        num_stages=stages,
    )


def _tile(
    most_queries: int, group: int, blocks: tuple[int, int], itemsize: int
) -> tuple[int, int, int, int]:
    """Queries and tokens of a tile, its warps, and how many tiles are on their way at once.

    A row of a tile is a query head of the group at a token, so that the heads of a group read a
    key once. A decode tile is narrow, as it is bound by memory; a prefill tile is as large as
    registers and 227 KiB of shared memory allow (tests/kernels/triton/compile_kernels.py).
    """
    widest = max(blocks) * itemsize  # bytes of a key or a value
    if most_queries == 1:
        is_wide = widest > 512
        return min(block_of(group), 64), 32 if is_wide else 64, 4, 2 if is_wide else 3
    if widest > 512:
        return 32, 32, 8, 1
    if itemsize > 2:  # products of float32 take three parts of each side
        return 64, 32, 8, 2
    return 256 if widest <= 256 else 128, 64, 8, 2
