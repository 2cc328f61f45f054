"""The experts of a mixture, each on the tokens that were routed to it."""

from math import inf
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.kernels.backend import numba_takes, triton_runs
from hybridrt.kernels.blocked_matrices import BLOCK, BlockedMatrices
from hybridrt.kernels.linear import PackedMatrices
from hybridrt.kernels.op import like_first, torch_op
from hybridrt.kernels.quantised_linear import QuantisedMatrices
from hybridrt.kernels.reference import moe as reference
from hybridrt.kernels.reference.gates import Gating

InBlocks = BlockedMatrices | QuantisedMatrices
"""Matrices of experts that one kernel of numba reads, if all blocks are whole."""

UNSORTED_TOKENS = 64
"""On a GPU, up to as many are found by their experts; more are sorted by expert first."""

CROWDED = 1024
"""Assignments an expert, from which on torch's grouped product is worth its copies."""


def moe_experts(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"] | PackedMatrices,
    down: Float[Tensor, "experts hidden inner"] | PackedMatrices,
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    gate_up_bias: Float[Tensor, "experts twice_inner"] | None = None,
    down_bias: Float[Tensor, "experts hidden"] | None = None,
    gating: Gating = "silu",
    alpha: float = 1.0,
    limit: float = inf,
) -> Float[Tensor, "tokens hidden"]:
    """`sum_j weights[t, j] * MLP of expert expert_ids[t, j] on x[t]`, for every token.

    `gate_up` has a matrix `[twice_inner, hidden]` an expert, the gate's rows before those of
    `up` or by turns with them, and `down` one of `[hidden, inner]`; biases of either are optional.
    `gating` is SwiGLU, another activation of the gate, or what else
    `hybridrt.kernels.reference.gates` has, with its `alpha` and `limit`. Summed in float32.
    """
    rest = (expert_ids, weights, gate_up_bias, down_bias, gating, alpha, limit)
    if isinstance(gate_up, InBlocks) and isinstance(down, InBlocks) and reads_blocks(x, down):
        from hybridrt.kernels.cpu import blocked_moe, expert_gates

        gate = expert_gates.make_gate(gating, alpha, limit)
        return blocked_moe.run_blocked_experts(x, gate_up, down, *rest[:4], gate)
    if isinstance(gate_up, PackedMatrices) or isinstance(down, PackedMatrices):
        return reference.moe_experts(x, gate_up, down, *rest)
    return stacked_moe_experts(x, gate_up, down, *rest)


def reads_stacked(*matrices: Float[Tensor, "experts _ _"]) -> bool:
    """Whether a kernel of numba takes them as they are, and faster than oneDNN one by one."""
    fitting = all(part.shape[-1] % 32 == 0 and part.is_contiguous() for part in matrices)
    return fitting and numba_takes(*matrices)


def reads_blocks(x: Float[Tensor, "tokens hidden"], down: InBlocks) -> bool:
    """Whether a kernel of numba takes experts in blocks: all of them are whole."""
    if isinstance(down, BlockedMatrices):
        return True
    return down.outputs % BLOCK == 0 == down.inputs % BLOCK and numba_takes(x)


@torch_op(like_first)
def stacked_moe_experts(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    gate_up_bias: Float[Tensor, "experts twice_inner"] | None = None,
    down_bias: Float[Tensor, "experts hidden"] | None = None,
    gating: Gating = "silu",
    alpha: float = 1.0,
    limit: float = inf,
) -> Float[Tensor, "tokens hidden"]:
    """`moe_experts` with matrices that aren't packed: what a compiler can take."""
    args = (x, gate_up, down, expert_ids, weights, gate_up_bias, down_bias, gating, alpha, limit)
    if numba_takes(x) and reads_stacked(gate_up, down):
        from hybridrt.kernels.cpu import expert_gates, moe

        return moe.run_experts(*args[:7], expert_gates.make_gate(gating, alpha, limit))
    if triton_runs(x.device):
        return _moe_experts_on_gpu(*args)
    return reference.moe_experts(*args)


def _moe_experts_on_gpu(x: Tensor, gate_up: Tensor, down: Tensor, *rest: Any) -> Tensor:
    """By how many tokens there are, of an expert too, and what torch's grouped product takes."""
    if len(x) <= UNSORTED_TOKENS:
        from hybridrt.kernels.triton.few_experts import few_experts

        return few_experts(x, gate_up, down, *rest)
    if is_crowded(rest[0], down) and reference.can_group(x, gate_up, down):
        from hybridrt.kernels.triton.grouped_moe import grouped_experts

        return grouped_experts(x, gate_up, down, *rest)
    from hybridrt.kernels.triton.moe import moe_experts

    return moe_experts(x, gate_up, down, *rest)


def is_crowded(
    expert_ids: Int64[Tensor, "tokens top_k"], matrices: Float[Tensor, "experts _ _"]
) -> bool:
    """Whether experts have many tokens each, if all have as many."""
    return expert_ids.numel() >= CROWDED * len(matrices)
