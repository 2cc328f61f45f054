"""mla_attention in numba: latents are read where they stand, without a copy.

Those of chunks are gathered if they aren't float32, or if they are to be expanded.
"""

from types import ModuleType

import numba
import numpy as np
import torch
from jaxtyping import BFloat16, Float, Float32, Shaped
from torch import Tensor
from torch.nn.functional import linear

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.cpu import (
    mla_project,
    mla_project_amx,
    mla_project_pairs,
    mla_project_rounded,
)
from hybridrt.kernels.cpu.attend import attend, by_tiles
from hybridrt.kernels.cpu.attend_jobs import Sizes
from hybridrt.kernels.cpu.attend_lanes import attend_lanes
from hybridrt.kernels.cpu.bfloat16 import are_singles, is_readable, of_dtype
from hybridrt.kernels.cpu.causal_attention import (
    attend_row,
    causal_attention,
    takes_pages,
)
from hybridrt.kernels.cpu.copies import take_tokens
from hybridrt.kernels.cpu.rows_linear import rows_linear, takes_rows
from hybridrt.kernels.cpu.vectors import HAS_VECTORS
from hybridrt.kernels.reference import mla_attention as reference
from hybridrt.kernels.reference.gather import Reach
from hybridrt.kernels.reference.softmax_attention import Softmax
from hybridrt.kernels.rounded_heads import RoundedHeads


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
    rounded_uk: RoundedHeads | None = None,
    rounded_uv: RoundedHeads | None = None,
) -> Float[Tensor, "tokens heads v_dim"]:
    """See `hybridrt.kernels.mla_attention`. What is quantised, decode rows leave to it."""
    n = batch.num_decodes
    readable = all(is_readable(part) for part in (c_kv, k_pe, w_uk, w_uv))
    out = q_nope.new_empty(*q_nope.shape[:2], w_uv.shape[1])
    reach, softmax = Reach(window, chunked), Softmax(scale)
    latents = reference.Latents(c_kv, k_pe, c_kv_scale)
    if n and readable and c_kv_scale is None and c_kv.dtype == k_pe.dtype:
        queries, where = (q_nope[:n], q_pe[:n]), (c_kv, k_pe, pages, batch, scale, reach)
        if rounded_uk is not None and rounded_uv is not None and q_nope.dtype == torch.bfloat16:
            q = mla_project_rounded.absorb(*queries, rounded_uk)
            mla_project_rounded.expand_values(_decode(q, *where), rounded_uv, out[:n])
        else:
            project = _projection(q_nope, q_pe, c_kv, k_pe, w_uk, w_uv)
            q = project.absorb(*queries, w_uk)
            project.expand_values(_decode(q, *where), w_uv, out[:n])
    elif n:
        queries = q_nope[:n], q_pe[:n]
        out[:n] = reference.decode(*queries, latents, w_uk, w_uv, pages, batch, softmax, reach)
    more = (latents, w_uk, w_uv, pages, batch, softmax, reach, out)
    if c_kv_scale is None and n == 0 and _attend_new(q_nope, q_pe, *more):
        return out
    stop = n
    for row in batch.prefills:
        stop = row.stop
        tokens = slice(row.start, stop)
        queries, weights = (q_nope[tokens], q_pe[tokens]), (w_uk, w_uv)
        if c_kv_scale is None and _stays(row, *queries, c_kv, k_pe, *weights, reach):
            q = reference.absorb(*queries, w_uk).contiguous()
            attended = _attend_chunk(q, c_kv, k_pe, pages, row, scale, reach)
            out[tokens] = reference.expand_values(attended, w_uv)
        elif all(part.dtype == torch.bfloat16 for part in (q_nope, c_kv, k_pe, w_uk, w_uv)):
            _attend_latents(*queries, latents, *weights, pages, row, softmax, reach, out[tokens])
        else:
            more = pages, row, softmax, reach, causal_attention
            out[tokens] = reference.attend_row(*queries, latents, *weights, *more)
    if stop < len(out):
        out[stop:] = 0
    return out


def _projection(
    q_nope: Float[Tensor, "tokens heads nope_dim"],
    q_pe: Float[Tensor, "tokens heads rope_dim"],
    c_kv: Shaped[Tensor, "blocks block_size rank"],
    k_pe: Float[Tensor, "blocks block_size rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
) -> ModuleType:
    """What takes decodes' queries to latents, and latents to values."""
    if by_tiles(q_nope, q_pe, c_kv, k_pe, w_uk, w_uv):
        return mla_project_amx
    if all(part.dtype == torch.bfloat16 for part in (q_nope, w_uk, w_uv)):
        return mla_project_pairs
    return mla_project


def _attend_new(
    q_nope: Float[Tensor, "tokens heads nope_dim"],
    q_pe: Float[Tensor, "tokens heads rope_dim"],
    latents: reference.Latents,
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    pages: TokenPages,
    batch: Rows,
    softmax: Softmax,
    reach: Reach,
    out: Float[Tensor, "tokens heads v_dim"],
) -> bool:
    """One row without a context, expanded, with padding behind it; False: it is to be asked for.

    Neither its length nor its pages are looked at but by kernels. What they read of padding is
    arbitrary, and seen by nobody.
    """
    row = Prefill(0, 0, q_nope.shape[0], 0)
    if not batch.starts_anew or batch.num_rows != 1:
        return False
    if pages.page_table.shape[1] * latents.c_kv.shape[1] < row.stop:
        return False
    parts = q_nope, q_pe, latents.c_kv, latents.k_pe, w_uk, w_uv
    if not all(part.dtype == torch.bfloat16 for part in parts):
        return False
    if not _expands(row, w_uk, w_uv, q_pe.shape[-1], softmax, reach):
        return False
    _attend_expanded(q_nope, q_pe, latents, w_uk, w_uv, pages, row, softmax, reach, out, batch)
    return True


def _attend_latents(
    q_nope: BFloat16[Tensor, "queries heads nope_dim"],
    q_pe: BFloat16[Tensor, "queries heads rope_dim"],
    latents: reference.Latents,
    w_uk: BFloat16[Tensor, "heads nope_dim rank"],
    w_uv: BFloat16[Tensor, "heads v_dim rank"],
    pages: TokenPages,
    row: Prefill,
    softmax: Softmax,
    reach: Reach,
    out: BFloat16[Tensor, "queries heads v_dim"],
) -> None:
    """A prefill row, whose keys, if latents are expanded, are read in two parts."""
    more = w_uk, w_uv, pages, row, softmax, reach
    if _expands(row, w_uk, w_uv, q_pe.shape[-1], softmax, reach):
        _attend_expanded(q_nope, q_pe, latents, *more, out)
    else:
        out[:] = reference.attend_row(q_nope, q_pe, latents, *more, causal_attention)


def _expands(
    row: Prefill,
    w_uk: BFloat16[Tensor, "heads nope_dim rank"],
    w_uv: BFloat16[Tensor, "heads v_dim rank"],
    rope_dim: int,
    softmax: Softmax,
    reach: Reach,
) -> bool:
    """Whether latents are to be expanded, to what `attend_row` takes."""
    pairs = HAS_VECTORS and w_uk.shape[1] % 2 == rope_dim % 2 == 0 and softmax.scale > 0
    first = reach.first_visible(row.context)
    return pairs and reference.expanding_is_cheaper(row, w_uk, w_uv, rope_dim, first)


def _attend_expanded(
    q_nope: BFloat16[Tensor, "queries heads nope_dim"],
    q_pe: BFloat16[Tensor, "queries heads rope_dim"],
    latents: reference.Latents,
    w_uk: BFloat16[Tensor, "heads nope_dim rank"],
    w_uv: BFloat16[Tensor, "heads v_dim rank"],
    pages: TokenPages,
    row: Prefill,
    softmax: Softmax,
    reach: Reach,
    out: BFloat16[Tensor, "queries heads v_dim"],
    batch: Rows | None = None,
) -> None:
    """A prefill row's attention to keys and values; for `batch` see `attend_row`."""
    first = reach.first_visible(row.context)
    c_kv, k_pe = (_read(part, pages, row, first) for part in (latents.c_kv, latents.k_pe))
    q = tuple(q if q.stride(-1) == 1 else q.contiguous() for q in (q_nope, q_pe))
    k_nope, v = _expand(c_kv, w_uk, w_uv)
    k = k_nope, k_pe.expand(len(k_nope), *k_pe.shape)
    assert takes_pages(q, k, v, softmax), "keys and values are pairs, side by side"
    attend_row(q, k, v, softmax, reach, first, out, batch)


def _read(
    part: BFloat16[Tensor, "blocks block_size dim"], pages: TokenPages, row: Prefill, first: int
) -> BFloat16[Tensor, "latents dim"]:
    """What a row's tokens from the `first` on have in their pages."""
    place, tokens = first % part.shape[1], row.context + row.stop - row.start - first
    out = part.new_empty(tokens, part.shape[2])
    take_tokens(part, pages.page_table[row.row], place, out)
    return out


def _expand(
    c_kv: BFloat16[Tensor, "latents rank"],
    w_uk: BFloat16[Tensor, "heads nope_dim rank"],
    w_uv: BFloat16[Tensor, "heads v_dim rank"],
) -> tuple[BFloat16[Tensor, "heads latents nope_dim"], BFloat16[Tensor, "heads latents v_dim"]]:
    """What each head makes of the latents, by one product if both weights are parts of one."""
    heads, nope_dim, rank = w_uk.shape
    both_dims = nope_dim + w_uv.shape[1]
    strides, distance = (both_dims * rank, rank, 1), w_uv.data_ptr() - w_uk.data_ptr()
    if {w_uk.stride(), w_uv.stride()} == {strides} and distance == w_uk.itemsize * nope_dim * rank:
        weight = w_uk.as_strided((heads * both_dims, rank), (rank, 1))
        product = rows_linear if takes_rows(weight) else linear
        both = product(c_kv, weight).view(len(c_kv), heads, both_dims).transpose(0, 1)
        return both[..., :nope_dim], both[..., nope_dim:]
    return reference.of_heads(c_kv, w_uk), reference.of_heads(c_kv, w_uv)


def _stays(
    row: Prefill,
    q_nope: Float[Tensor, "queries heads nope_dim"],
    q_pe: Float[Tensor, "queries heads rope_dim"],
    c_kv: Shaped[Tensor, "blocks block_size rank"],
    k_pe: Float[Tensor, "blocks block_size rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    reach: Reach,
) -> bool:
    """Whether a chunk's latents can be read in their pages, and are not worth expanding."""
    first = reach.first_visible(row.context)
    return are_singles(q_nope, c_kv, k_pe) and not reference.expanding_is_cheaper(
        row, w_uk, w_uv, q_pe.shape[-1], first
    )


def _attend_chunk(
    q: Float32[Tensor, "queries heads latent_dim"],
    c_kv: Float32[Tensor, "blocks block_size rank"],
    k_pe: Float32[Tensor, "blocks block_size rope_dim"],
    pages: TokenPages,
    row: Prefill,
    scale: float,
    reach: Reach,
) -> Float32[Tensor, "queries heads rank"]:
    """What each head of a prefill row attends to: a latent."""
    out = torch.empty(*q.shape[:2], c_kv.shape[-1])
    attend_lanes(
        *(q.data_ptr(), c_kv.data_ptr(), k_pe.data_ptr(), c_kv.data_ptr()),
        *(pages.page_table[row.row].data_ptr(), row.context, *q.shape[:2]),
        *(_sizes(q, c_kv, k_pe, reach), np.float32(scale), np.float32(0), 0, out.data_ptr()),
        numba.get_num_threads(),
    )
    return out


def _decode(
    q: Float[Tensor, "rows heads latent_dim"],
    c_kv: Shaped[Tensor, "blocks block_size rank"],
    k_pe: Float[Tensor, "blocks block_size rope_dim"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    reach: Reach,
) -> Float[Tensor, "rows heads rank"]:
    """What each head of a decode row attends to: a latent."""
    out = torch.empty(*q.shape[:2], c_kv.shape[-1], dtype=q.dtype)
    attend(
        by_tiles(q, c_kv, k_pe),
        of_dtype(q),
        q.data_ptr(),
        of_dtype(c_kv),
        c_kv.data_ptr(),
        k_pe.data_ptr(),
        c_kv.data_ptr(),
        pages.page_table.data_ptr(),
        pages.page_table.stride(0),
        batch.context_lens.data_ptr(),
        *q.shape[:2],
        _sizes(q, c_kv, k_pe, reach),
        np.float32(scale),
        np.float32(0),
        0,
        out.data_ptr(),
        numba.get_num_threads(),
    )
    return out


def _sizes(
    q: Float[Tensor, "queries heads latent_dim"],
    c_kv: Shaped[Tensor, "blocks block_size rank"],
    k_pe: Float[Tensor, "blocks block_size rope_dim"],
    reach: Reach,
) -> Sizes:
    """All query heads are one group, and a latent is a key and a value."""
    rank = c_kv.shape[-1]
    return Sizes(
        q_token=q.stride(0),
        q_head=q.stride(1),
        k=rank,
        more=k_pe.shape[-1],
        v=rank,
        kv_heads=1,
        block_size=c_kv.shape[1],
        k_block=c_kv.stride(0),
        k_head=0,
        k_token=c_kv.stride(1),
        more_block=k_pe.stride(0),
        more_token=k_pe.stride(1),
        v_block=c_kv.stride(0),
        v_head=0,
        v_token=c_kv.stride(1),
        window=reach.window or 0,
        chunked=reach.chunked,
        values_are_keys=True,
    )
