"""kda_inputs in plain torch: the definition."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.reference.delta_inputs import l2_norm


def kda_inputs(
    q: Float[Tensor, "tokens inner"],
    k: Float[Tensor, "tokens inner"],
    f: Float[Tensor, "tokens inner"],
    b: Float[Tensor, "tokens heads"],
    A_log: Float32[Tensor, " heads"],
    dt_bias: Float32[Tensor, " inner"],
    decay_bound: float | None,
) -> tuple[
    Float32[Tensor, "tokens heads head_dim"],
    Float32[Tensor, "tokens heads head_dim"],
    Float32[Tensor, "tokens heads head_dim"],
    Float32[Tensor, "tokens heads"],
]:
    """See `hybridrt.kernels.kda_inputs`."""
    by_head = (len(A_log), q.shape[1] // len(A_log))
    q, k, f = (part.unflatten(-1, by_head) for part in (q, k, f.float() + dt_bias))
    rate = torch.exp(A_log)[:, None]
    g = -rate * F.softplus(f) if decay_bound is None else decay_bound * torch.sigmoid(rate * f)
    return l2_norm(q) * q.shape[-1] ** -0.5, l2_norm(k), g, torch.sigmoid(b.float())
