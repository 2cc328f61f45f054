"""The mLSTM: a matrix memory with gates that are exponentials."""

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import mlstm as reference


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return torch.empty_like(v)


@torch_op(_fake, writes=["memory", "normaliser", "peak"])
def mlstm(
    q: Float[Tensor, "tokens heads head_k_dim"],
    k: Float[Tensor, "tokens heads head_k_dim"],
    v: Float[Tensor, "tokens heads head_v_dim"],
    log_input: Float32[Tensor, "tokens heads"],
    log_forget: Float32[Tensor, "tokens heads"],
    memory: Float[Tensor, "pages heads head_k_dim head_v_dim"],
    normaliser: Float[Tensor, "pages heads head_k_dim"],
    peak: Float[Tensor, "pages heads"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    eps: float,
) -> Float[Tensor, "tokens heads head_v_dim"]:
    """`C = f C + i k v^T`, `n = f n + i k`, `y = C^T q / max(|n . q|, 1)` along each sequence.

    `i = exp(log_input)` may be large, so C and n are kept divided by `exp(m)`, with
    `m = max(log_forget + m, log_input)` from 0 on: the 1 above is `exp(-m)` then, and `eps` is
    added to what y is divided by (arXiv 2405.04517, equations 15 and 25 to 28). `log_forget` is
    at most 0. `memory`, `normaliser` and `peak` hold C, n and m; they are read and left in pages
    as in `selective_scan`. Computed in float32; y has the dtype of v.
    """
    states = (memory, normaliser, peak)
    return reference.mlstm(
        q, k, v, log_input, log_forget, *states, pages, initial_pages, batch, eps
    )
