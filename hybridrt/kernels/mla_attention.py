"""Causal attention over cached MLA latents, in the absorbed or the expanded form."""

from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.backend import AttentionBackend
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import mla_attention as reference
from hybridrt.kernels.rounded_heads import RoundedHeads


def _fake(
    q_nope: Tensor, q_pe: Tensor, c_kv: Tensor, k_pe: Tensor, w_uk: Tensor, w_uv: Tensor, *_: object
) -> Tensor:
    return q_nope.new_empty(*q_nope.shape[:2], w_uv.shape[1])


@torch_op(_fake, reads=["c_kv", "k_pe", "c_kv_scale"])
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
    backend: AttentionBackend = "reference",
) -> Float[Tensor, "tokens heads v_dim"]:
    """Attends from every new token to all latents of its sequence up to itself.

    Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). A head's
    key is `[w_uk c_kv, k_pe]` and its value `w_uv c_kv`. Since `q . (w_uk c) = (w_uk^T q)
    . c`, a query can be taken to the latents instead of expanding every latent into keys
    and values (absorbed, best for few queries); for many queries on few latents the
    expansion is cheaper. Both give the same result but for rounding.

    `rounded_uk`, of which each head's inputs are `nope_dim`, and `rounded_uv`, whose are `rank`,
    are those weights in few bits, if these are what such stand for. A kernel may read either.

    `window` and `chunked` are those of `hybridrt.kernels.paged_attention`, and so is where the
    page table begins with them.

    With `c_kv_scale` the latents are those of `hybridrt.kernels.quantise.
    quantise_e4m3_groups`. `k_pe` may have another dtype than the queries. Padding tokens
    behind the last row get zeros.
    """
    args = (q_nope, q_pe, c_kv, k_pe, w_uk, w_uv, pages, batch, scale, c_kv_scale)
    if backend == "triton":
        from hybridrt.kernels.triton import mla_attention as on_gpu

        return on_gpu.mla_attention(*args, window, chunked)
    if backend == "numba":
        from hybridrt.kernels.cpu import mla_attention as cpu

        return cpu.mla_attention(*args, window, chunked, rounded_uk, rounded_uv)
    return reference.mla_attention(*args, window, chunked)
