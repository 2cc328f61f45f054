"""xIELU, an activation that is learned (arXiv 2411.13010)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def xielu(
    x: Float[Tensor, "*batch"],
    alpha_p: Float[Tensor, "*alphas"],
    alpha_n: Float[Tensor, "*alphas"],
    beta: Float[Tensor, "*numbers"],
    eps: Float[Tensor, "*numbers"],
) -> Float[Tensor, "*batch"]:
    """`a_p x^2 + beta x` where x is positive, else `a_n (exp(min(x, eps)) - 1 - x) + beta x`.

    `a_p = softplus(alpha_p)` and `a_n = beta + softplus(alpha_n)`; `eps` is a little below 0,
    and keeps the exponential from where its difference to 1 is lost. All four are one number
    each, of any shape. Computed in float32.
    """
    y, beta = x.float(), beta.float()
    a_p, a_n = F.softplus(alpha_p.float()), beta + F.softplus(alpha_n.float())
    curved = (torch.expm1(torch.minimum(y, eps.float())) - y) * a_n
    return (torch.where(y > 0, a_p * y * y, curved) + beta * y).to(x.dtype)
