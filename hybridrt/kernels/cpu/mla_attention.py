"""mla_attention in numba: decode rows read latents where they stand, without a copy.

For chunks of a prefill torch's products of matrices take less time.
"""

import numba
import numpy as np
import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.cpu.attend import Sizes, attend
from hybridrt.kernels.cpu.flat import is_readable, kept_bits
from hybridrt.kernels.cpu.mla_project import absorb, expand_values
from hybridrt.kernels.reference import mla_attention as reference
from hybridrt.kernels.reference.gather import Reach
from hybridrt.kernels.reference.softmax_attention import Softmax


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
    """See `hybridrt.kernels.mla_attention`. Quantised latents are left to the reference."""
    n = batch.num_decodes
    readable = all(is_readable(part) for part in (c_kv, k_pe, w_uk, w_uv))
    if n == 0 or c_kv_scale is not None or c_kv.dtype != k_pe.dtype or not readable:
        args = (q_nope, q_pe, c_kv, k_pe, w_uk, w_uv, pages, batch, scale, c_kv_scale)
        return reference.mla_attention(*args, window, chunked)
    out = q_nope.new_empty(*q_nope.shape[:2], w_uv.shape[1])
    reach = Reach(window, chunked)
    q = absorb(q_nope[:n], q_pe[:n], w_uk)
    expand_values(_decode(q, c_kv, k_pe, pages, batch, scale, reach), w_uv, out[:n])
    if n < len(out):
        latents, softmax = reference.Latents(c_kv, k_pe, None), Softmax(scale)
        weights = (w_uk, w_uv)
        reference.attend_rows(q_nope, q_pe, latents, *weights, pages, batch, softmax, reach, out)
    return out


def _decode(
    q: Float32[Tensor, "rows heads latent_dim"],
    c_kv: Shaped[Tensor, "blocks block_size rank"],
    k_pe: Float[Tensor, "blocks block_size rope_dim"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    reach: Reach,
) -> Float32[Tensor, "rows heads rank"]:
    """What each head attends to: a latent. All query heads are one group."""
    rank = c_kv.shape[-1]
    sizes = Sizes(
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
    latents = kept_bits(c_kv)
    out = torch.empty(*q.shape[:2], rank)
    attend(  # pyright: ignore[reportCallIssue]
        q.numpy(),
        latents,
        kept_bits(k_pe),
        latents,
        kept_bits(pages.page_table),
        pages.page_table.stride(0),
        batch.context_lens.numpy(),
        len(q),
        sizes,
        np.float32(scale),
        np.float32(0),
        torch.empty(0).numpy(),
        out.view(-1).numpy(),
        numba.get_num_threads(),
    )
    return out
