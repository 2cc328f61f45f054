"""Attention over some of the cached MLA latents: those that were selected for each token."""

from jaxtyping import Float, Float32, Int32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import sparse_mla_attention as reference


def _fake(
    q_nope: Tensor, q_pe: Tensor, c_kv: Tensor, k_pe: Tensor, w_uk: Tensor, w_uv: Tensor, *_: object
) -> Tensor:
    return q_nope.new_empty(*q_nope.shape[:2], w_uv.shape[1])


@torch_op(_fake, reads=["c_kv", "k_pe", "c_kv_scale"])
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
    """`hybridrt.kernels.mla_attention`, of each token to the positions `selected` for it.

    They are those of `hybridrt.kernels.select_tokens`: ascending, up to the token's own, -1
    behind the last, and all there are where a token sees no more than `top_k`. `sinks` is one
    logit a head that joins the denominator and has no value (gpt-oss, arXiv 2508.10925). Padding
    tokens behind the last row get zeros.
    """
    return reference.sparse_mla_attention(
        q_nope, q_pe, c_kv, k_pe, w_uk, w_uv, selected, pages, batch, scale, c_kv_scale, sinks
    )
