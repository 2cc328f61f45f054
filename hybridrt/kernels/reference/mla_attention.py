"""mla_attention in plain torch."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.gather import blocks_for, gather_row, gather_rows, valid_tokens
from hybridrt.kernels.reference.paged_attention import causal_attention


def mla_attention(
    q_nope: Float[Tensor, "tokens heads nope_dim"],
    q_pe: Float[Tensor, "tokens heads rope_dim"],
    c_kv: Float[Tensor, "blocks block_size rank"],
    k_pe: Float[Tensor, "blocks block_size rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
) -> Float[Tensor, "tokens heads v_dim"]:
    """See `hybridrt.kernels.mla_attention`."""
    out = q_nope.new_empty(q_nope.shape[0], q_nope.shape[1], w_uv.shape[1])
    if batch.num_decodes:
        decodes = slice(0, batch.num_decodes)
        q = _absorb(q_nope[decodes], q_pe[decodes], w_uk)
        out[decodes] = _expand_values(_decode(q, c_kv, k_pe, pages, batch, scale), w_uv)
    for row in batch.prefills:
        tokens = slice(row.start, row.stop)
        latents = _read(c_kv, k_pe, pages, row)
        attend = _expanded if expanding_is_cheaper(row, w_uk, w_uv, q_pe.shape[-1]) else _absorbed
        out[tokens] = attend(q_nope[tokens], q_pe[tokens], *latents, w_uk, w_uv, scale)
    return out


def expanding_is_cheaper(
    row: Prefill,
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    rope_dim: int,
) -> bool:
    """Compares the multiplications per head of the two forms.

    Expanding costs `rank * (nope + v)` per latent and then `nope + rope + v` per pair of
    query and latent; absorbing costs as much per query and then `2 * rank + rope` a pair.
    """
    (_, nope_dim, rank), v_dim = w_uk.shape, w_uv.shape[1]
    queries, latents = row.stop - row.start, row.context + row.stop - row.start
    projection = rank * (nope_dim + v_dim)
    pairs = queries * latents
    expanded = latents * projection + pairs * (nope_dim + rope_dim + v_dim)
    absorbed = queries * projection + pairs * (2 * rank + rope_dim)
    return expanded < absorbed


def _read(
    c_kv: Float[Tensor, "blocks block_size rank"],
    k_pe: Float[Tensor, "blocks block_size rope_dim"],
    pages: TokenPages,
    row: Prefill,
) -> tuple[Float[Tensor, "latents rank"], Float[Tensor, "latents rope_dim"]]:
    seq_len = row.context + row.stop - row.start
    blocks = pages.page_table[row.row, : blocks_for(seq_len, c_kv.shape[1])]
    return gather_row(c_kv[None], blocks, seq_len)[0], gather_row(k_pe[None], blocks, seq_len)[0]


def _absorb(
    q_nope: Float[Tensor, "tokens heads nope_dim"],
    q_pe: Float[Tensor, "tokens heads rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
) -> Float[Tensor, "tokens heads latent_dim"]:
    """Queries that can be compared with latents."""
    q_latent = torch.einsum("thn,hnc->thc", q_nope, w_uk)
    return torch.cat([q_latent, q_pe], dim=-1)


def _expand_values(
    latent: Float[Tensor, "tokens heads rank"], w_uv: Float[Tensor, "heads v_dim rank"]
) -> Float[Tensor, "tokens heads v_dim"]:
    return torch.einsum("thc,hvc->thv", latent, w_uv)


def _decode(
    q: Float[Tensor, "rows heads latent_dim"],
    c_kv: Float[Tensor, "blocks block_size rank"],
    k_pe: Float[Tensor, "blocks block_size rope_dim"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
) -> Float[Tensor, "rows heads rank"]:
    """All heads are queries of the one latent head. The latent is its own value."""
    rows, rank = q.shape[0], c_kv.shape[-1]
    max_tokens = batch.longest_decode
    table = pages.page_table[:rows, : blocks_for(max_tokens, c_kv.shape[1])]
    valid = valid_tokens(batch.seq_lens[:rows], max_tokens)
    k = torch.cat([gather_rows(part[None], table, valid) for part in (c_kv, k_pe)], dim=-1)
    # As a value the key does too: its rotary part is cut off, and equal sizes take
    # torch's fused path.
    out = scaled_dot_product_attention(
        q[:, None], k, k, attn_mask=valid[:, None, None], scale=scale
    )
    return out[:, 0, :, :rank]


def _absorbed(
    q_nope: Float[Tensor, "queries heads nope_dim"],
    q_pe: Float[Tensor, "queries heads rope_dim"],
    c_kv: Float[Tensor, "latents rank"],
    k_pe: Float[Tensor, "latents rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    scale: float,
) -> Float[Tensor, "queries heads v_dim"]:
    q = _absorb(q_nope, q_pe, w_uk).transpose(0, 1)
    k = torch.cat([c_kv, k_pe], dim=-1)[None]
    latent = causal_attention(q, k, k, scale)[..., : c_kv.shape[-1]]
    return _expand_values(latent.transpose(0, 1), w_uv)


def _expanded(
    q_nope: Float[Tensor, "queries heads nope_dim"],
    q_pe: Float[Tensor, "queries heads rope_dim"],
    c_kv: Float[Tensor, "latents rank"],
    k_pe: Float[Tensor, "latents rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    scale: float,
) -> Float[Tensor, "queries heads v_dim"]:
    heads, v_dim = w_uv.shape[:2]
    q = torch.cat([q_nope, q_pe], dim=-1).transpose(0, 1)
    k_nope = torch.einsum("lc,hnc->hln", c_kv, w_uk)
    k = torch.cat([k_nope, k_pe.expand(heads, -1, -1)], dim=-1)
    v = torch.einsum("lc,hvc->hlv", c_kv, w_uv)
    # Values are padded to the size of keys where they are smaller: torch's fused path
    # wants equal sizes.
    padding = max(0, q.shape[-1] - v_dim)
    out = causal_attention(q, k, pad(v, (0, padding)), scale)
    return out[..., :v_dim].transpose(0, 1)
