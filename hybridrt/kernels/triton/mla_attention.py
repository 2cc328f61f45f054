"""mla_attention in Triton: absorbed queries on latents, or the keys and values they stand for."""

import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor
from torch.nn.functional import linear

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.gather import Reach, blocks_for, gather_row
from hybridrt.kernels.reference.mla_attention import (
    Latents,
    expanding_is_cheaper,
)
from hybridrt.kernels.reference.quantise import GROUP
from hybridrt.kernels.triton.combine import combine, num_splits
from hybridrt.kernels.triton.latent_tile import attend_latents
from hybridrt.kernels.triton.launch import block_of, cdiv, row_strides
from hybridrt.kernels.triton.mla_project import absorb, expand_values
from hybridrt.kernels.triton.mla_values import MOST_TOKENS, join_and_expand
from hybridrt.kernels.triton.paged_attention import Parts, attend_row

_STAGES = 3  # of the pipeline of loads: two tiles of latents are in memory at once
_LATENTS = 32  # of a tile
_LATENTS_OF_FEW, _WARPS_OF_FEW = 32, 4  # of a tile of 16 rows; two programs share a processor

Queries = tuple[Float[Tensor, "queries heads rank"], Float[Tensor, "queries heads rope_dim"]]
"""Queries on latents, and their rotated part."""


def mla_attention(
    q_nope: Float[Tensor, "tokens heads nope_dim"],
    q_pe: Float[Tensor, "tokens heads rope_dim"],
    c_kv: Shaped[Tensor, "blocks block_size rank"],
    k_pe: Float[Tensor, "blocks block_size rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    c_kv_scale: Float32[Tensor, "blocks block_size groups"] | None = None,
    window: int | None = None,
    chunked: bool = False,
) -> Float[Tensor, "tokens heads v_dim"]:
    """See `hybridrt.kernels.mla_attention`."""
    latents, reach = Latents(c_kv, k_pe, c_kv_scale), Reach(window, chunked)
    out = q_nope.new_empty(q_nope.shape[0], q_nope.shape[1], w_uv.shape[1])
    stop = n = batch.num_decodes
    if n:
        q = (absorb(q_nope[:n], w_uk), q_pe[:n])
        _decode(q, latents, w_uv, pages, batch, scale, reach, out[:n])
    for row in batch.prefills:
        stop = row.stop
        tokens = slice(row.start, stop)
        first = reach.first_visible(row.context)
        if expanding_is_cheaper(row, w_uk, w_uv, q_pe.shape[-1], first):
            k, v = _keys_and_values(latents, w_uk, w_uv, pages, row, q_nope.dtype, first)
            attend_row((q_nope, q_pe), k, v, batch, row.row, scale, reach, out)
        else:
            q = (absorb(q_nope[tokens], w_uk), q_pe[tokens])
            found, count = torch.empty_like(q[0]), row.stop - row.start
            rows = (row.row, row.row + 1)
            _launch(q, row.start, latents, pages, batch, scale, reach, found, rows, count)
            expand_values(found, w_uv, out[tokens])
    if stop < len(q_nope):
        out[stop:] = 0  # padding
    return out


def _decode(
    q: Queries,
    latents: Latents,
    w_uv: Float[Tensor, "heads v_dim rank"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    reach: Reach,
    out: Float[Tensor, "decodes heads v_dim"],
) -> None:
    """What the decode rows attend to: contexts in splits, if rows are few."""
    (n, heads, rank), block_size = q[0].shape, latents.c_kv.shape[1]
    most_tokens = pages.page_table.shape[1] * block_size
    programs = n * cdiv(heads, _tile(1, heads, rank, out.itemsize)[0])
    splits = num_splits(out, programs, min(most_tokens, reach.window or most_tokens))
    if splits == 1:
        found = out.new_empty(n, heads, rank)
        _launch(q, 0, latents, pages, batch, scale, reach, found, (0, n), 1)
        expand_values(found, w_uv, out)
        return
    parts = torch.empty(n, heads, splits, rank, dtype=torch.float32, device=out.device)
    logs = parts.new_empty(n, heads, splits)
    _launch(q, 0, latents, pages, batch, scale, reach, parts, (0, n), 1, splits, logs)
    if n <= MOST_TOKENS:
        join_and_expand(parts, logs, w_uv, out)
        return
    found = out.new_empty(n, heads, rank)
    combine(parts, logs, None, found)
    expand_values(found, w_uv, out)


def _keys_and_values(
    latents: Latents,
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    pages: TokenPages,
    row: Prefill,
    dtype: torch.dtype,
    first: int,
) -> tuple[Parts, Float[Tensor, "1 heads seen v_dim"]]:
    """What one row's latents stand for, from the token `first` on. A key has two parts."""
    block_size, seq_len = latents.c_kv.shape[1], row.context + row.stop - row.start
    begin = first // block_size * block_size
    blocks = pages.page_table[row.row, : blocks_for(seq_len - begin, block_size)]
    places = slice(first - begin, seq_len - begin)
    c_kv, k_pe = latents.read(lambda part: gather_row(part, blocks, places), dtype)
    k, v = _of_heads(c_kv[0], w_uk, w_uv)
    return (k[None], k_pe.expand(len(w_uk), -1, -1)[None]), v[None]


def _of_heads(
    c_kv: Float[Tensor, "seen rank"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
) -> tuple[Float[Tensor, "heads seen nope_dim"], Float[Tensor, "heads seen v_dim"]]:
    """By one product, where the weights are parts of one, as a layer's are."""
    heads, nope_dim, rank = w_uk.shape
    dims = [nope_dim, w_uv.shape[1]]
    distance = w_uv.data_ptr() - w_uk.data_ptr()
    are_one = w_uk.stride() == w_uv.stride() == (sum(dims) * rank, rank, 1)
    if are_one and distance == nope_dim * rank * w_uk.itemsize:
        weight = w_uk.as_strided((heads * sum(dims), rank), (rank, 1))
        both = linear(c_kv, weight).unflatten(1, (heads, -1)).transpose(0, 1)
        k, v = both.split(dims, dim=-1)
        return k, v
    return torch.matmul(c_kv, w_uk.transpose(1, 2)), torch.matmul(c_kv, w_uv.transpose(1, 2))


def _launch(
    q: Queries,
    first_token: int,
    latents: Latents,
    pages: TokenPages,
    batch: Rows,
    scale: float,
    reach: Reach,
    out: Float[Tensor, "..."],
    rows: tuple[int, int],
    most_queries: int,
    splits: int = 1,
    logs: Float32[Tensor, "decodes heads splits"] | None = None,
) -> None:
    """Some rows, the first of whose tokens is `first_token`, and q's first.

    `out` is the result, or with several splits what each of them found.
    """
    c_kv, k_pe, c_scale = latents.c_kv, latents.k_pe, latents.c_kv_scale
    (_, block_size, rank), rope_dim = c_kv.shape, k_pe.shape[-1]
    heads, itemsize = q[0].shape[1], q[0].itemsize
    block_m, block_n, warps = _tile(most_queries, heads, rank, itemsize)
    grid = (cdiv(most_queries * heads, block_m), rows[1] - rows[0], splits)
    attend_latents[grid](
        *q,
        c_kv,
        k_pe,
        c_scale,
        pages.page_table,
        batch.seq_lens,
        batch.cu_seqlens_q,
        out,
        logs,
        *q[0].stride(),
        *q[1].stride(),
        *c_kv.stride(),
        *k_pe.stride(),
        *row_strides(c_scale, 3),
        pages.page_table.stride(0),
        *out.stride()[:2],
        scale,
        rows[0],
        first_token,
        splits,
        HEADS=heads,
        BLOCK_SIZE=block_size,
        RANK=rank,
        ROPE_DIM=rope_dim,
        SCALE_GROUP=GROUP if c_scale is not None else 0,
        WINDOW=reach.window or 0,
        CHUNKED=reach.chunked,
        IN_SPLITS=splits > 1,
        BLOCK_R=block_of(rank),
        BLOCK_P=block_of(rope_dim),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=warps,
        num_stages=1 if _is_wide(rank, itemsize) else _STAGES,
    )


def _tile(most_queries: int, heads: int, rank: int, itemsize: int) -> tuple[int, int, int]:
    """Queries and latents of a tile, and its warps. A row of a tile is a head at a token.

    Tall enough for all heads of a decode row, or for 64, which fill a warp group's product. The
    accumulator is as wide as a latent: 64 rows of 512 channels take half the registers of 8 warps.
    In float32, tiles of more rows gave wrong numbers on an H200 (Triton 3.6, 8 warps).
    """
    is_wide = _is_wide(rank, itemsize)
    most = 16 if itemsize > 2 else 32 if is_wide else 64
    block_m = min(most, block_of(most_queries * heads))
    if block_m == 16:
        return block_m, 16 if is_wide else _LATENTS_OF_FEW, _WARPS_OF_FEW
    return block_m, 16 if is_wide else _LATENTS, 8


def _is_wide(rank: int, itemsize: int) -> bool:
    """Whether a latent is so long that tiles are small, and come one at a time."""
    return rank * itemsize > 1024
