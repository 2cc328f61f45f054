"""Causal attention over a paged cache, with a learned bias for each distance."""

from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import relative_attention as reference


def _fake(
    q: Tensor, relative: Tensor, profiles: Tensor, k: Tensor, v: Tensor, *_: object
) -> Tensor:
    return q.new_empty(*q.shape[:2], v.shape[-1])


@torch_op(_fake, reads=["k", "v", "k_scale", "v_scale"])
def relative_attention(
    q: Float[Tensor, "tokens heads head_dim_k"],
    relative: Float[Tensor, "tokens heads num_profiles"],
    profiles: Float[Tensor, "num_profiles extent"],
    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    window: int | None = None,
    k_scale: Float32[Tensor, "..."] | None = None,
    v_scale: Float32[Tensor, "..."] | None = None,
    sinks: Float[Tensor, "tokens heads"] | None = None,
) -> Float[Tensor, "tokens heads head_dim_v"]:
    """`hybridrt.kernels.paged_attention`, with something added to the scores.

    The score of the key that stands d tokens before the query is `scale * q . k + relative .
    profiles[:, d]`; the second term is 0 for `d >= extent` (Inkling). It is so the query that
    says how much which profile of distances counts. `sinks` are a query's own scores of nothing:
    they take weight and give no value. Computed in float32. Windows, quantised caches and
    padding are as in `hybridrt.kernels.paged_attention`.
    """
    return reference.relative_attention(
        q, relative, profiles, k, v, pages, batch, scale, window, k_scale, v_scale, sinks
    )
