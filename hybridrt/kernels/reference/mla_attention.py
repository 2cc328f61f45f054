"""mla_attention in plain torch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Shaped
from torch import Tensor
from torch.nn.functional import linear

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.gather import (
    EVERYTHING,
    Reach,
    blocks_for,
    decode_places,
    gather_row,
    gather_rows,
)
from hybridrt.kernels.reference.quantise import dequantise_groups
from hybridrt.kernels.reference.softmax_attention import (
    CausalAttention,
    Softmax,
    attend_once,
    causal_attention,
)


@dataclass(frozen=True, slots=True)
class Latents:
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
    window: int | None = None,
    chunked: bool = False,
) -> Float[Tensor, "tokens heads v_dim"]:
    """See `hybridrt.kernels.mla_attention`."""
    latents, softmax = Latents(c_kv, k_pe, c_kv_scale), Softmax(scale)
    reach = Reach(window, chunked)
    out = q_nope.new_empty(q_nope.shape[0], q_nope.shape[1], w_uv.shape[1])
    n = batch.num_decodes
    if n:
        queries = q_nope[:n], q_pe[:n]
        out[:n] = decode(*queries, latents, w_uk, w_uv, pages, batch, softmax, reach)
    attend_rows(q_nope, q_pe, latents, w_uk, w_uv, pages, batch, softmax, reach, out)
    return out


def decode(
    q_nope: Float[Tensor, "rows heads nope_dim"],
    q_pe: Float[Tensor, "rows heads rope_dim"],
    latents: Latents,
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    pages: TokenPages,
    batch: Rows,
    softmax: Softmax,
    reach: Reach = EVERYTHING,
) -> Float[Tensor, "rows heads v_dim"]:
    """The decode rows of a batch, in the form that compares queries with latents."""
    q = absorb(q_nope, q_pe, w_uk)
    return expand_values(decode_latents(q, latents, pages, batch, softmax, reach), w_uv)


def attend_rows(
    q_nope: Float[Tensor, "tokens heads nope_dim"],
    q_pe: Float[Tensor, "tokens heads rope_dim"],
    latents: Latents,
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    pages: TokenPages,
    batch: Rows,
    softmax: Softmax,
    reach: Reach,
    out: Float[Tensor, "tokens heads v_dim"],
) -> None:
    """Fills `out` behind the decode rows: what prefill rows attend to, and zeros for padding."""
    stop = batch.num_decodes
    for row in batch.prefills:
        stop = row.stop
        tokens = slice(row.start, stop)
        queries = q_nope[tokens], q_pe[tokens]
        weights = w_uk, w_uv
        out[tokens] = attend_row(*queries, latents, *weights, pages, row, softmax, reach)
    out[stop:] = 0


def attend_row(
    q_nope: Float[Tensor, "queries heads nope_dim"],
    q_pe: Float[Tensor, "queries heads rope_dim"],
    latents: Latents,
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    pages: TokenPages,
    row: Prefill,
    softmax: Softmax,
    reach: Reach = EVERYTHING,
    attend: CausalAttention = causal_attention,
) -> Float[Tensor, "queries heads v_dim"]:
    """The queries of one prefill row, in the cheaper form."""
    first = reach.first_visible(row.context)
    cached = read_row(latents, pages, row, q_nope.dtype, first)
    expands = expanding_is_cheaper(row, w_uk, w_uv, q_pe.shape[-1], first)
    form = _expanded if expands else _absorbed
    return form(q_nope, q_pe, *cached, w_uk, w_uv, softmax, reach, first, attend)


def expanding_is_cheaper(
    row: Prefill,
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    rope_dim: int,
    first: int = 0,
) -> bool:
    """Compares the multiplications per head of the two forms.

    Expanding costs `rank * (nope + v)` per latent and then `nope + rope + v` per pair of
    query and latent; absorbing costs as much per query and then `2 * rank + rope` a pair.
    """
    (_, nope_dim, rank), v_dim = w_uk.shape, w_uv.shape[1]
    queries = row.stop - row.start
    latents = row.context + queries - first
    projection = rank * (nope_dim + v_dim)
    pairs = queries * latents
    expanded = latents * projection + pairs * (nope_dim + rope_dim + v_dim)
    absorbed = queries * projection + pairs * (2 * rank + rope_dim)
    return expanded < absorbed


def read_row(
    latents: Latents, pages: TokenPages, row: Prefill, dtype: torch.dtype, first: int
) -> tuple[Float[Tensor, "latents rank"], Float[Tensor, "latents rope_dim"]]:
    """A row's latents from the token `first` on, in whose block the row's page table begins."""
    block_size, seq_len = latents.c_kv.shape[1], row.context + row.stop - row.start
    begin = first // block_size * block_size
    blocks = pages.page_table[row.row, : blocks_for(seq_len - begin, block_size)]
    places = slice(first - begin, seq_len - begin)
    c_kv, k_pe = latents.read(lambda part: gather_row(part, blocks, places), dtype)
    return c_kv[0], k_pe[0]


def absorb(
    q_nope: Float[Tensor, "tokens heads nope_dim"],
    q_pe: Float[Tensor, "tokens heads rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
) -> Float[Tensor, "tokens heads latent_dim"]:
    """Queries that can be compared with latents."""
    q_latent = torch.matmul(q_nope.transpose(0, 1), w_uk).transpose(0, 1)
    return torch.cat([q_latent, q_pe], dim=-1)


def expand_values(
    latent: Float[Tensor, "tokens heads rank"], w_uv: Float[Tensor, "heads v_dim rank"]
) -> Float[Tensor, "tokens heads v_dim"]:
    """Each head's value, of a latent that it attended to."""
    return torch.matmul(latent.transpose(0, 1), w_uv.transpose(1, 2)).transpose(0, 1)


def decode_latents(
    q: Float[Tensor, "rows heads latent_dim"],
    latents: Latents,
    pages: TokenPages,
    batch: Rows,
    softmax: Softmax,
    reach: Reach = EVERYTHING,
) -> Float[Tensor, "rows heads rank"]:
    """The decode rows, each with all its latents in reach."""
    places = decode_places(pages, batch, latents.c_kv.shape[1], reach)
    k = torch.cat(latents.read(lambda part: gather_rows(part, places), q.dtype), dim=-1)
    return attend_to_latents(q, k, places.mask, softmax)[..., : latents.c_kv.shape[-1]]


def attend_to_latents(
    q: Float[Tensor, "queries heads latent_dim"],
    k: Float[Tensor, "queries 1 count latent_dim"],
    mask: Bool[Tensor, "queries count"] | None,
    softmax: Softmax,
) -> Float[Tensor, "queries heads latent_dim"]:
    """Each query attends to latents of its own, with all its heads. A latent is its own value.

    As a value it has its rotary part too, which the caller cuts off: equal sizes take torch's
    fused path.
    """
    return attend_once(q, k, k, mask, softmax)


def _absorbed(
    q_nope: Float[Tensor, "queries heads nope_dim"],
    q_pe: Float[Tensor, "queries heads rope_dim"],
    c_kv: Float[Tensor, "latents rank"],
    k_pe: Float[Tensor, "latents rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    softmax: Softmax,
    reach: Reach,
    first: int,
    attend: CausalAttention,
) -> Float[Tensor, "queries heads v_dim"]:
    q = absorb(q_nope, q_pe, w_uk).transpose(0, 1)
    k = torch.cat([c_kv, k_pe], dim=-1)[None]
    latent = attend(q, k, k, softmax, reach, first)[..., : c_kv.shape[-1]]
    return expand_values(latent.transpose(0, 1), w_uv)


def _expanded(
    q_nope: Float[Tensor, "queries heads nope_dim"],
    q_pe: Float[Tensor, "queries heads rope_dim"],
    c_kv: Float[Tensor, "latents rank"],
    k_pe: Float[Tensor, "latents rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    softmax: Softmax,
    reach: Reach,
    first: int,
    attend: CausalAttention,
) -> Float[Tensor, "queries heads v_dim"]:
    q = torch.cat([q_nope, q_pe], dim=-1).transpose(0, 1)
    k_nope = of_heads(c_kv, w_uk)
    k = torch.cat([k_nope, k_pe.expand(len(w_uk), -1, -1)], dim=-1)
    v = of_heads(c_kv, w_uv)
    return attend(q, k, v, softmax, reach, first).transpose(0, 1)


def of_heads(
    c_kv: Float[Tensor, "latents rank"], weight: Float[Tensor, "heads dim rank"]
) -> Float[Tensor, "heads latents dim"]:
    """What each head makes of the latents: one product for all heads takes least time."""
    return linear(c_kv, weight.flatten(0, 1)).unflatten(1, weight.shape[:2]).transpose(0, 1)
