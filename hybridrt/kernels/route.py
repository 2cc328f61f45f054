"""A router picks a few experts for each token."""

from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.kernels.backend import has_numba, triton_takes
from hybridrt.kernels.reference import route as reference
from hybridrt.kernels.reference.route import Routing

FEW_TOKENS = 64
FEW_WEIGHTS = 2**18
"""A router of more, for more tokens, is left to torch, whose matrix product is faster then."""


def route(
    x: Float[Tensor, "tokens hidden"],
    weight: Float[Tensor, "experts hidden"],
    correction_bias: Float32[Tensor, " experts"] | None,
    routing: Routing,
) -> tuple[Int64[Tensor, "tokens top_k"], Float32[Tensor, "tokens top_k"]]:
    """Each token's best experts, the best first, and their weights. Computed in float32.

    A logit is `weight[e] . x[t]`. `correction_bias` is added to scores for the choice alone
    (arXiv 2408.15664).
    """
    is_few = len(x) <= FEW_TOKENS or weight.numel() <= FEW_WEIGHTS
    if len(x) > 0 and is_few and routing.n_group == 1 and has_numba(x, weight):
        from hybridrt.kernels.cpu import route as cpu

        if cpu.takes(x, weight):
            return cpu.route(x, weight, correction_bias, routing)
    if triton_takes(x):
        from hybridrt.kernels.triton import route as on_gpu

        return on_gpu.route(x, weight, correction_bias, routing)
    return reference.route(x, weight, correction_bias, routing)
