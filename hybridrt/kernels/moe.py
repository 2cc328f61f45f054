"""The experts of a mixture, each on the tokens that were routed to it."""

from jaxtyping import Float, Int64
from torch import Tensor, nn

from hybridrt.kernels.op import like_first, torch_op
from hybridrt.kernels.reference import moe as reference


def moe_experts(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"] | nn.ParameterList,
    down: Float[Tensor, "experts hidden inner"] | nn.ParameterList,
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens hidden"]:
    """`sum_j weights[t, j] * SwiGLU of expert expert_ids[t, j] on x[t]`, for every token.

    `gate_up` has a matrix `[twice_inner, hidden]` an expert, the gate's rows before those of
    `up`, and `down` one of `[hidden, inner]`. Summed in float32.
    """
    if isinstance(gate_up, nn.ParameterList) or isinstance(down, nn.ParameterList):
        return reference.moe_experts(x, gate_up, down, expert_ids, weights)
    return stacked_moe_experts(x, gate_up, down, expert_ids, weights)


@torch_op(like_first)
def stacked_moe_experts(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens hidden"]:
    """`moe_experts` with matrices that aren't packed: what a compiler can take."""
    return reference.moe_experts(x, gate_up, down, expert_ids, weights)
