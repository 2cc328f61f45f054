"""scan_inputs in plain torch: the definition."""

from math import inf

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn import functional as F


def scan_inputs(
    dt: Float[Tensor, "tokens channels"],
    dt_bias: Float[Tensor, " channels"] | None,
    A_log: Float32[Tensor, " channels *state_size"],
    limits: tuple[float, float],
) -> tuple[Float32[Tensor, "tokens channels"], Float32[Tensor, " channels *state_size"]]:
    """See `hybridrt.kernels.scan_inputs`."""
    dt = dt.float()
    steps = F.softplus(dt if dt_bias is None else dt + dt_bias)
    return steps if limits == (0.0, inf) else steps.clamp(*limits), -torch.exp(A_log)
