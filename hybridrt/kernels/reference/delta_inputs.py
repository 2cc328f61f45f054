"""delta_inputs in plain torch: the definition."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn import functional as F


def l2_norm(x: Float[Tensor, "*batch size"]) -> Float32[Tensor, "*batch size"]:
    """`x / sqrt(sum(x^2) + 1e-6)` over the last axis."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def delta_inputs(
    qk: Float[Tensor, "tokens two_key_dims"],
    a: Float[Tensor, "tokens heads"],
    b: Float[Tensor, "tokens heads"],
    A_log: Float32[Tensor, " heads"],
    dt_bias: Float32[Tensor, " heads"],
    key_heads: int,
    beta_scale: float,
) -> tuple[
    Float32[Tensor, "tokens key_heads head_k_dim"],
    Float32[Tensor, "tokens key_heads head_k_dim"],
    Float32[Tensor, "tokens heads"],
    Float32[Tensor, "tokens heads"],
]:
    """See `hybridrt.kernels.delta_inputs`."""
    q, k = l2_norm(qk.unflatten(-1, (2, key_heads, -1))).unbind(1)
    g = -torch.exp(A_log) * F.softplus(a.float() + dt_bias)
    return q * q.shape[-1] ** -0.5, k, g, beta_scale * torch.sigmoid(b.float())
