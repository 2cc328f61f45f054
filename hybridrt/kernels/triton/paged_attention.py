"""paged_attention in Triton: one kernel for prefill tiles and for splits of a decode's context."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.reference.gather import Reach
from hybridrt.kernels.triton.attention_tile import attend_tile
from hybridrt.kernels.triton.combine import combine, num_splits
from hybridrt.kernels.triton.launch import block_of, cdiv, row_strides

Parts = tuple[Tensor, Tensor | None]
"""Queries or keys in one tensor, or their first channels and those behind them in another."""

_LEAST_CHANNELS = 32
"""Of a prefill's tile: threads copy 16 bytes then. Of 16 channels (Triton 3.6, 8 warps, float16)
tiles were wrong at times on an H200."""


class _Cache(NamedTuple):
    """Keys and values in pages, what multiplies them, and which of them a query sees."""

    k: Parts
    v: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    table: Tensor | None
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
    cache = _Cache((k, None), v, k_scale, v_scale, pages.page_table, window or 0, chunked)
    softmax = _Softmax(scale, None if sinks is None else sinks.contiguous(), softcap)
    out = q.new_empty(q.shape[0], q.shape[1], v.shape[-1])
    n = batch.num_decodes
    if n:
        _decode(q, cache, batch, softmax, out)
    if n < batch.num_rows:
        lengths = batch.query_lens[n:]
        first = _first_part(q.shape[-1])
        cache = cache._replace(k=_parts(k, first))
        rows = (n, batch.num_rows)
        _launch(_parts(q, first), cache, batch, softmax, out, rows, int(lengths.max()))
        n += int(lengths.sum())
    if n < len(q):
        out[n:] = 0  # padding
    return out


def attend_row(
    q: Parts,
    k: Parts,
    v: Shaped[Tensor, "1 kv_heads seen head_dim_v"],
    batch: Rows,
    row: int,
    scale: float,
    reach: Reach,
    out: Float[Tensor, "tokens heads head_dim_v"],
) -> None:
    """Fills `out` at the tokens of a prefill row, on keys and values of that row alone.

    `q` are `[tokens, heads, dim]` of the whole batch. `k` and `v` begin with the first token
    that the row's first new token sees, and lie one behind another.
    """
    cache = _Cache(k, v, None, None, None, reach.window or 0, reach.chunked)
    queries = int(batch.query_lens[row])
    _launch(q, cache, batch, _Softmax(scale, None, None), out, (row, row + 1), queries)


def _first_part(dim: int) -> int:
    """How many channels a query's first part has, where two parts leave fewer of a tile empty.

    A product's sides are powers of two: of 192 channels a tile has 128 and 64 then, not 256.
    """
    whole = block_of(dim, _LEAST_CHANNELS)
    first = whole // 2
    return first if first < dim and first + block_of(dim - first, _LEAST_CHANNELS) < whole else dim


def _parts(x: Shaped[Tensor, "... dim"], first: int) -> Parts:
    """Views of the first channels and of the others."""
    return (x, None) if first == x.shape[-1] else (x[..., :first], x[..., first:])


def _decode(
    q: Float[Tensor, "tokens heads head_dim_k"],
    cache: _Cache,
    batch: Rows,
    softmax: _Softmax,
    out: Float[Tensor, "tokens heads head_dim_v"],
) -> None:
    """The decode rows: contexts in splits, where rows alone don't fill the device."""
    n, (_, heads, dim) = batch.num_decodes, out.shape
    assert cache.table is not None
    kv_heads, block_size = cache.v.shape[1:3]
    most_tokens = cache.table.shape[1] * block_size
    splits = num_splits(q, n * kv_heads, min(most_tokens, cache.window or most_tokens))
    if splits == 1:
        _launch((q, None), cache, batch, softmax, out, (0, n), 1)
        return
    parts = torch.empty(n, heads, splits, dim, dtype=torch.float32, device=q.device)
    logs = parts.new_empty(n, heads, splits)
    _launch((q, None), cache, batch, softmax, parts, (0, n), 1, splits, logs)
    combine(parts, logs, softmax.sinks, out[:n])


def _launch(
    queries: Parts,
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
    (q, q_more), ((k, k_more), v, k_scale, v_scale, table, window, chunked) = queries, cache
    kv_heads, block_size, dim_v = v.shape[1:]
    group, least = q.shape[1] // kv_heads, 16 if most_queries == 1 else _LEAST_CHANNELS
    dims = k.shape[-1], 0 if k_more is None else k_more.shape[-1], dim_v
    blocks = [block_of(dim, least) if dim else 0 for dim in dims]
    block_m, block_n, warps, stages = _tile(most_queries, group, blocks, q.itemsize, splits)
    if table is None:
        stages -= stages > 2  # one is for the page table, which is read before the rest
    grid = (kv_heads * splits, rows[1] - rows[0], cdiv(most_queries * group, block_m))
    scales = 0 if k_scale is None else 1 if k_scale.dim() == 1 else 2
    attend_tile[grid](
        q,
        q_more,
        k,
        k_more,
        v,
        k_scale,
        v_scale,
        softmax.sinks,
        table,
        batch.seq_lens,
        batch.cu_seqlens_q,
        out,
        logs,
        *q.stride(),
        *row_strides(q_more, 3),
        *k.stride(),
        *row_strides(k_more, 4),
        *v.stride(),
        *row_strides(k_scale if scales == 2 else None, 3),
        *row_strides(v_scale if scales == 2 else None, 3),
        0 if table is None else table.stride(0),
        *out.stride()[:2],
        out.stride(-1),
        softmax.scale,
        softmax.softcap or 1.0,
        rows[0],
        splits,
        GROUP=group,
        BLOCK_SIZE=1 if table is None else block_size,
        DIM_K=dims[0],
        DIM_MORE=dims[1],
        DIM_V=dim_v,
        WINDOW=window,
        CHUNKED=chunked,
        SCALES=scales,
        HAS_SINKS=softmax.sinks is not None,
        HAS_CAP=softmax.softcap is not None,
        SCALE_LATE=scales != 2 and softmax.softcap is None and softmax.scale > 0,
        IN_SPLITS=splits > 1,
        SPLIT_LOOP=most_queries > 1 and window == 0,
        BLOCK_K=blocks[0],
        BLOCK_MORE=blocks[1],
        BLOCK_V=blocks[2],
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=warps,
        num_stages=stages,
    )


def _tile(
    most_queries: int, group: int, blocks: list[int], itemsize: int, splits: int
) -> tuple[int, int, int, int]:
    """Queries and tokens of a tile, its warps, and how many tiles are on their way at once.

    A row of a tile is a query head of the group at a token, so that the heads of a group read a
    key once. A decode tile is narrow, as it is bound by memory; a prefill tile is as large as
    registers and 227 KiB of shared memory allow (tests/kernels/triton/compile_kernels.py).
    """
    widest = max(blocks) * itemsize  # bytes of a value, or of a part of a key
    if most_queries == 1:
        # Splits of a context are as many as programs are wanted: shorter tiles are more of them,
        # and as many tokens are on their way.
        tokens = 128 if widest <= 256 and splits == 1 else 64 if widest <= 512 else 32
        stages = 2 if widest > 512 else 5 if widest <= 256 and splits > 1 else 3
        return min(block_of(group), 64), tokens, 4, stages
    if widest > 512 or sum(blocks) > 576:
        return 32, 32, 8, 1
    if itemsize > 2:  # products of float32 take three parts of each side
        return 64, 32, 8, 2
    if widest <= 256 and sum(blocks) <= 256:
        return 256, 64, 8, 3
    return 128, 128 if widest <= 256 and sum(blocks) <= 320 else 64, 8, 3
