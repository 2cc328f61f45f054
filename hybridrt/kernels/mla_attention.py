"""Causal attention over cached MLA latents, in the absorbed or the expanded form."""

from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.reference import mla_attention as reference


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
    """Attends from every new token to all latents of its sequence up to itself.

    Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). A head's
    key is `[w_uk c_kv, k_pe]` and its value `w_uv c_kv`. Since `q . (w_uk c) = (w_uk^T q)
    . c`, a query can be taken to the latents instead of expanding every latent into keys
    and values (absorbed, best for few queries); for many queries on few latents the
    expansion is cheaper. Both give the same result but for rounding.
    """
    return reference.mla_attention(q_nope, q_pe, c_kv, k_pe, w_uk, w_uv, pages, batch, scale)
