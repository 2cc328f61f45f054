"""Causal attention over a paged cache, for decode rows and prefill chunks together."""

from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.backend import AttentionBackend
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import paged_attention as reference


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return q.new_empty(*q.shape[:2], v.shape[-1])


@torch_op(_fake, reads=["k", "v", "k_scale", "v_scale"])
def paged_attention(
    q: Float[Tensor, "tokens heads head_dim_k"],
    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    window: int | None = None,
    chunked: bool = False,
    sinks: Float[Tensor, " heads"] | None = None,
    softcap: float | None = None,
    k_scale: Float32[Tensor, "..."] | None = None,
    v_scale: Float32[Tensor, "..."] | None = None,
    backend: AttentionBackend = "reference",
) -> Float[Tensor, "tokens heads head_dim_v"]:
    """Attends from every new token to the tokens of its sequence up to itself.

    Query head `h` reads key head `h // (heads // kv_heads)` (grouped-query attention,
    arXiv 2305.13245). The new tokens' keys and values have been written before. `k` and
    `v` may have any strides, and are never copied as a whole; where they are the two parts
    of one view's last axis, one read brings both. Padding tokens behind the last row get
    zeros.

    Which tokens: all; with `window` the last `window`, itself included (sliding window,
    arXiv 2310.06825); or with `chunked` those of its own chunk of `window` tokens (Llama 4).
    The page table then begins with the kernel block that holds the first token which the
    row's first new token sees. Nothing before that token and nothing behind the end of a
    sequence is read into a result, whatever it holds.

    The score of a key is `scale * q . k`; with `softcap` c it becomes `c * tanh(score / c)`
    (Gemma 2, arXiv 2408.00118). `sinks` is a logit of each query head that joins the
    softmax's denominator (gpt-oss, arXiv 2508.10925).

    A quantised cache has `k_scale` and `v_scale`, float32: one a head, `[kv_heads]`, or one a
    token and head, `[blocks, kv_heads, block_size]`, in pages as `k` and `v` are. See
    `hybridrt.kernels.quantise`.
    """
    args = (q, k, v, pages, batch, scale, window, chunked, sinks, softcap, k_scale, v_scale)
    if backend == "triton":
        from hybridrt.kernels.triton import paged_attention as on_gpu

        return on_gpu.paged_attention(*args)
    if backend == "numba":
        from hybridrt.kernels.cpu import paged_attention as cpu

        return cpu.paged_attention(*args)
    return reference.paged_attention(*args)
