"""RWKV's recurrence: means of values, weighted by exponentials of keys that fade."""

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import wkv as reference


def _fake(k: Tensor, v: Tensor, *_: object) -> Tensor:
    return torch.empty_like(v)


@torch_op(_fake, writes=["numerator", "denominator", "peak"])
def wkv(
    k: Float[Tensor, "tokens channels"],
    v: Float[Tensor, "tokens channels"],
    log_decay: Float32[Tensor, " channels"],
    bonus: Float32[Tensor, " channels"],
    numerator: Float[Tensor, "pages channels"],
    denominator: Float[Tensor, "pages channels"],
    peak: Float[Tensor, "pages channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float[Tensor, "tokens channels"]:
    """`y[t] = sum_s w[t, s] v[s] / sum_s w[t, s]` over a sequence, channel by channel.

    `w[t, s]` is `exp(k[s] + (t - 1 - s) * log_decay)` for tokens before t, and `exp(k[t] + bonus)`
    for t itself (RWKV-4, arXiv 2305.13048, equation 16). `log_decay` is below 0. The two sums are
    kept divided by the `exp` of the largest exponent in them, which is kept too; a denominator of
    0 says that nothing has been added. Read and left in pages as in `selective_scan`. Computed in
    float32; y has the dtype of v.
    """
    states = (numerator, denominator, peak)
    return reference.wkv(k, v, log_decay, bonus, *states, pages, initial_pages, batch)
