"""sparse_mla_attention in plain torch: gathers each query's own latents."""

import torch
from jaxtyping import Float, Float32, Int32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.reference.gather import movable
from hybridrt.kernels.reference.mla_attention import (
    Latents,
    absorb,
    attend_row,
    attend_to_latents,
    decode_latents,
    expand_values,
)
from hybridrt.kernels.reference.softmax_attention import Softmax

_MOST_NUMBERS = 2**24  # gathered at once: 64 MiB of float32


def sparse_mla_attention(
    q_nope: Float[Tensor, "tokens heads nope_dim"],
    q_pe: Float[Tensor, "tokens heads rope_dim"],
    c_kv: Shaped[Tensor, "blocks block_size rank"],
    k_pe: Shaped[Tensor, "blocks block_size rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    selected: Int32[Tensor, "tokens top_k"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    c_kv_scale: Float32[Tensor, "blocks block_size groups"] | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "tokens heads v_dim"]:
    """See `hybridrt.kernels.sparse_mla_attention`."""
    latents, softmax = Latents(c_kv, k_pe, c_kv_scale), Softmax(scale, sinks)
    top_k = selected.shape[1]
    out = q_nope.new_zeros(q_nope.shape[0], q_nope.shape[1], w_uv.shape[1])
    n = batch.num_decodes
    if n:
        q = absorb(q_nope[:n], q_pe[:n], w_uk)
        if int(batch.context_lens[:n].max()) < top_k:
            found = decode_latents(q, latents, pages, batch, softmax)
        else:
            found = _attend(q, latents, selected[:n], pages.page_table[:n], softmax)
        out[:n] = expand_values(found, w_uv)
    for row in batch.prefills:
        tokens = slice(row.start, row.stop)
        queries = q_nope[tokens], q_pe[tokens]
        if row.context + row.stop - row.start <= top_k:
            out[tokens] = attend_row(*queries, latents, w_uk, w_uv, pages, row, softmax)
        else:
            table = pages.page_table[row.row].expand(row.stop - row.start, -1)
            found = _attend(absorb(*queries, w_uk), latents, selected[tokens], table, softmax)
            out[tokens] = expand_values(found, w_uv)
    return out


def _attend(
    q: Float[Tensor, "queries heads latent_dim"],
    latents: Latents,
    selected: Int32[Tensor, "queries top_k"],
    table: Int32[Tensor, "queries max_blocks"],
    softmax: Softmax,
) -> Float[Tensor, "queries heads rank"]:
    """A few queries at a time, each with the blocks of its own sequence."""
    block_size, rank = latents.c_kv.shape[1:]
    parts: list[Tensor] = []
    lot = max(1, _MOST_NUMBERS // (selected.shape[1] * q.shape[-1]))
    for start in range(0, len(q), lot):
        part = slice(start, start + lot)
        positions = selected[part].clamp(min=0).long()
        blocks = table[part].gather(1, positions // block_size)

        def gather(
            cache: Tensor, blocks: Tensor = blocks, places: Tensor = positions % block_size
        ) -> Tensor:
            found = movable(cache).transpose(1, 2)[blocks, places].transpose(1, 2)
            return found if found.dtype == cache.dtype else found.view(cache.dtype)

        k = torch.cat(latents.read(gather, q.dtype), dim=-1)
        parts.append(attend_to_latents(q[part], k, selected[part] >= 0, softmax)[..., :rank])
    return torch.cat(parts)
