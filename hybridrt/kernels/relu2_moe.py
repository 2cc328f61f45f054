"""Experts without gates: each on the tokens that were routed to it."""

from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.kernels.backend import numba_takes, triton_runs
from hybridrt.kernels.linear import PackedMatrices
from hybridrt.kernels.moe import (
    UNSORTED_TOKENS,
    InBlocks,
    is_crowded,
    reads_blocks,
    reads_stacked,
)
from hybridrt.kernels.op import like_first, torch_op
from hybridrt.kernels.reference import relu2_moe as reference
from hybridrt.kernels.reference.moe import can_group


def relu2_experts(
    x: Float[Tensor, "tokens hidden"],
    up: Float[Tensor, "experts inner hidden"] | PackedMatrices,
    down: Float[Tensor, "experts hidden inner"] | PackedMatrices,
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens hidden"]:
    """`sum_j weights[t, j] * down[e] relu(up[e] x[t])^2`, e = `expert_ids[t, j]`, for every token.

    Summed in float32.
    """
    if isinstance(up, InBlocks) and isinstance(down, InBlocks) and reads_blocks(x, down):
        from hybridrt.kernels.cpu import blocked_moe, expert_gates

        gate = expert_gates.Gate(expert_gates.SQUARED_RELU)
        rest = (expert_ids, weights, None, None, gate)
        return blocked_moe.run_blocked_experts(x, up, down, *rest)
    if isinstance(up, PackedMatrices) or isinstance(down, PackedMatrices):
        return reference.relu2_experts(x, up, down, expert_ids, weights)
    return stacked_relu2_experts(x, up, down, expert_ids, weights)


@torch_op(like_first)
def stacked_relu2_experts(
    x: Float[Tensor, "tokens hidden"],
    up: Float[Tensor, "experts inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens hidden"]:
    """`relu2_experts` with matrices that aren't packed: what a compiler can take."""
    if numba_takes(x) and reads_stacked(up, down):
        from hybridrt.kernels.cpu import expert_gates, moe

        gate = expert_gates.Gate(expert_gates.SQUARED_RELU)
        return moe.run_experts(x, up, down, expert_ids, weights, None, None, gate)
    if triton_runs(x.device):
        return _relu2_experts_on_gpu(x, up, down, expert_ids, weights)
    return reference.relu2_experts(x, up, down, expert_ids, weights)


def _relu2_experts_on_gpu(
    x: Float[Tensor, "tokens hidden"],
    up: Float[Tensor, "experts inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens hidden"]:
    """By how many tokens there are, of an expert too, and what torch's grouped product takes."""
    if len(x) <= UNSORTED_TOKENS:
        from hybridrt.kernels.triton.few_experts import few_experts

        return few_experts(x, up, down, expert_ids, weights, gating="relu2")
    if is_crowded(expert_ids, down) and can_group(x, up, down):
        from hybridrt.kernels.triton.grouped_moe import grouped_relu2_experts

        return grouped_relu2_experts(x, up, down, expert_ids, weights)
    from hybridrt.kernels.triton.moe import moe_experts

    return moe_experts(x, up, down, expert_ids, weights, gating="relu2")
