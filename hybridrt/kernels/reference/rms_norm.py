"""rms_norm and add_rms_norm in plain torch."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def rms_norm(
    x: Float[Tensor, "*rows size"], weight: Float[Tensor, " size"], eps: float, offset: float
) -> Float[Tensor, "*rows size"]:
    """See `hybridrt.kernels.rms_norm`."""
    if offset:
        factors = weight.float() + offset  # in float32, whatever the model's dtype
        return F.rms_norm(x.float(), factors.shape, factors, eps).to(weight.dtype)
    same = weight.to(x.dtype)
    return F.rms_norm(x, same.shape, same, eps).to(weight.dtype)


def add_rms_norm(
    x: Float[Tensor, "*rows size"],
    y: Float[Tensor, "*rows size"],
    weight: Float[Tensor, " size"],
    eps: float,
    offset: float,
    scale: float,
) -> tuple[Float[Tensor, "*rows size"], Float[Tensor, "*rows size"]]:
    """See `hybridrt.kernels.rms_norm`."""
    total = x + y if scale == 1.0 else x + y * scale
    return total, rms_norm(total, weight, eps, offset)
