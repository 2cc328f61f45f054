"""The experts of a mixture, each on the tokens that were routed to it."""

from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.kernels.reference import moe as reference


def moe_experts(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens hidden"]:
    """`sum_j weights[t, j] * SwiGLU of expert expert_ids[t, j] on x[t]`, for every token.

    The gate's rows come before those of `up` in `gate_up`. Summed in float32.
    """
    return reference.moe_experts(x, gate_up, down, expert_ids, weights)
