"""gated_rms_norm in plain torch."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def gated_rms_norm(
    x: Float[Tensor, "*rows size"],
    z: Float[Tensor, "*rows size"],
    weight: Float[Tensor, " size"],
    eps: float,
    num_groups: int,
    norm_before_gate: bool,
    gate: Literal["silu", "sigmoid"],
) -> Float[Tensor, "*rows size"]:
    """See `hybridrt.kernels.gated_rms_norm`."""
    gating = F.silu(z.float()) if gate == "silu" else torch.sigmoid(z.float())
    if norm_before_gate:
        y = _norm(x.float(), weight, eps, num_groups).mul_(gating)
    else:
        y = _norm(gating.mul_(x), weight, eps, num_groups)
    return y.to(z.dtype)


def _norm(
    y: Float[Tensor, "*rows size"], weight: Float[Tensor, " size"], eps: float, num_groups: int
) -> Float[Tensor, "*rows size"]:
    grouped = y.unflatten(-1, (num_groups, -1))
    # A norm is one pass, where squares, their mean and its root would be three.
    length = torch.linalg.vector_norm(grouped, dim=-1, keepdim=True)
    scale = length.square().div_(grouped.shape[-1]).add_(eps).rsqrt_()
    return (grouped * scale).flatten(-2).mul_(weight)
