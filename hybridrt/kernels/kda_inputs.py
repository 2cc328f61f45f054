"""What the delta rule with a decay for each key channel is given, of what a layer projects."""

from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.kernels.backend import triton_takes
from hybridrt.kernels.reference import kda_inputs as reference


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
    """q, k, g and beta, as `hybridrt.kernels.gated_delta_rule` takes them (arXiv 2510.26692).

    A head's query and key are each divided by `sqrt(sum(x^2) + 1e-6)`, queries by
    `sqrt(head_dim)` too. g is `-exp(A_log) softplus(f + dt_bias)`, or with a bound `decay_bound
    sigmoid(exp(A_log) (f + dt_bias))`; beta is `sigmoid(b)`.
    """
    args = (q, k, f, b, A_log, dt_bias, decay_bound)
    if triton_takes(q):
        from hybridrt.kernels.triton import kda_inputs as on_gpu

        return on_gpu.kda_inputs(*args)
    return reference.kda_inputs(*args)
