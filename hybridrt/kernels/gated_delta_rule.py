"""The gated delta rule: linear attention that corrects what its state has stored."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.op import torch_op
from hybridrt.kernels.reference import gated_delta_rule as reference


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return torch.empty_like(v)


@torch_op(_fake, writes=["ssm_state"])
def gated_delta_rule(
    q: Float[Tensor, "tokens key_heads head_k_dim"],
    k: Float[Tensor, "tokens key_heads head_k_dim"],
    v: Float[Tensor, "tokens heads head_v_dim"],
    g: Float[Tensor, "tokens heads"] | Float[Tensor, "tokens heads head_k_dim"],
    beta: Float[Tensor, "tokens heads"],
    ssm_state: Float[Tensor, "pages heads head_k_dim head_v_dim"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    backend: StateBackend = "reference",
) -> Float[Tensor, "tokens heads head_v_dim"]:
    """`S = diag(exp(g)) S`, `S = S + beta k (v - S^T k)^T`, `y = S^T q` along each sequence.

    Gated DeltaNet, arXiv 2412.06464, has one log decay a head, `g: [tokens, heads]`;
    Kimi Delta Attention, arXiv 2510.26692, one for each of a head's key channels. `g` is
    at most 0. Keys have length 1 and `beta` lies in 0 to 2, or states may grow without
    bound. Head h reads key head `h // (heads // key_heads)` of q and k. Computed in
    float32; y has the dtype of v. States are read and left in pages as in
    `selective_scan`.
    """
    args = (q, k, v, g, beta, ssm_state, pages, initial_pages, batch)
    if backend == "numba":
        from hybridrt.kernels.cpu import gated_delta_rule as cpu

        return cpu.gated_delta_rule(*args)
    if backend in ("triton", "mamba_ssm"):  # that package has no such kernel, and needs Triton
        from hybridrt.kernels.triton import gated_delta_rule as on_gpu

        return on_gpu.gated_delta_rule(*args)
    return reference.gated_delta_rule(*args)
