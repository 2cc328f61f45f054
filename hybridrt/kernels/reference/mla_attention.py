"""mla_attention in plain torch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.gather import blocks_for, decode_places, gather_row, gather_rows
from hybridrt.kernels.reference.quantise import dequantise_groups
from hybridrt.kernels.reference.softmax_attention import Softmax, causal_attention


@dataclass(frozen=True, slots=True)
class _Latents:
    """Latents and rotary keys in pages, and the latents' scales if they are quantised."""

    c_kv: Shaped[Tensor, "blocks block_size rank"]
    k_pe: Float[Tensor, "blocks block_size rope_dim"]
    c_kv_scale: Float32[Tensor, "blocks block_size groups"] | None

    def read(self, gather: Callable[[Tensor], Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What `gather` brings of either, `[..., 1, tokens, dim]`, as numbers of `dtype`.

        The latents of all heads are one, so pages are seen as those of a single head.
        """
        c_kv, k_pe = gather(self.c_kv[:, None]), gather(self.k_pe[:, None])
        if self.c_kv_scale is not None:
            c_kv = dequantise_groups(c_kv, gather(self.c_kv_scale[:, None]), dtype)
        return c_kv, k_pe.to(dtype)


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
) -> Float[Tensor, "tokens heads v_dim"]:
    """See `hybridrt.kernels.mla_attention`."""
    latents = _Latents(c_kv, k_pe, c_kv_scale)
    out = q_nope.new_empty(q_nope.shape[0], q_nope.shape[1], w_uv.shape[1])
    stop = batch.num_decodes
    if batch.num_decodes:
        q = _absorb(q_nope[:stop], q_pe[:stop], w_uk)
        out[:stop] = _expand_values(_decode(q, latents, pages, batch, scale), w_uv)
    for row in batch.prefills:
        stop = row.stop
        tokens = slice(row.start, stop)
        cached = _read_row(latents, pages, row, q_nope.dtype)
        attend = _expanded if expanding_is_cheaper(row, w_uk, w_uv, q_pe.shape[-1]) else _absorbed
        out[tokens] = attend(q_nope[tokens], q_pe[tokens], *cached, w_uk, w_uv, scale)
    if stop < len(q_nope):
        out[stop:] = 0  # padding
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


def _read_row(
    latents: _Latents, pages: TokenPages, row: Prefill, dtype: torch.dtype
) -> tuple[Float[Tensor, "latents rank"], Float[Tensor, "latents rope_dim"]]:
    seq_len = row.context + row.stop - row.start
    blocks = pages.page_table[row.row, : blocks_for(seq_len, latents.c_kv.shape[1])]
    c_kv, k_pe = latents.read(lambda part: gather_row(part, blocks, slice(seq_len)), dtype)
    return c_kv[0], k_pe[0]


def _absorb(
    q_nope: Float[Tensor, "tokens heads nope_dim"],
    q_pe: Float[Tensor, "tokens heads rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
) -> Float[Tensor, "tokens heads latent_dim"]:
    """Queries that can be compared with latents."""
    q_latent = torch.matmul(q_nope.transpose(0, 1), w_uk).transpose(0, 1)
    return torch.cat([q_latent, q_pe], dim=-1)


def _expand_values(
    latent: Float[Tensor, "tokens heads rank"], w_uv: Float[Tensor, "heads v_dim rank"]
) -> Float[Tensor, "tokens heads v_dim"]:
    return torch.matmul(latent.transpose(0, 1), w_uv.transpose(1, 2)).transpose(0, 1)


def _decode(
    q: Float[Tensor, "rows heads latent_dim"],
    latents: _Latents,
    pages: TokenPages,
    batch: Rows,
    scale: float,
) -> Float[Tensor, "rows heads rank"]:
    """All heads are queries of the one latent head. The latent is its own value."""
    places = decode_places(pages, batch, latents.c_kv.shape[1])
    k = torch.cat(latents.read(lambda part: gather_rows(part, places), q.dtype), dim=-1)
    mask = None if places.mask is None else places.mask[:, None, None]
    # As a value the key does too: its rotary part is cut off, and equal sizes take
    # torch's fused path.
    out = scaled_dot_product_attention(q[:, None], k, k, attn_mask=mask, scale=scale)
    return out[:, 0, :, : latents.c_kv.shape[-1]]


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
    latent = causal_attention(q, k, k, Softmax(scale))[..., : c_kv.shape[-1]]
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
    q = torch.cat([q_nope, q_pe], dim=-1).transpose(0, 1)
    k_nope = torch.einsum("lc,hnc->hln", c_kv, w_uk)
    k = torch.cat([k_nope, k_pe.expand(len(w_uk), -1, -1)], dim=-1)
    v = torch.einsum("lc,hvc->hlv", c_kv, w_uv)
    return causal_attention(q, k, v, Softmax(scale)).transpose(0, 1)
