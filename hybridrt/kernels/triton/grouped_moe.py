"""moe_experts for a prefill's tokens: torch's grouped products between kernels of ours."""

from math import inf

from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.reference.moe import Inner, multiply_groups
from hybridrt.kernels.triton.gated import relu2
from hybridrt.kernels.triton.spread_rows import spread_rows
from hybridrt.kernels.triton.weighted_sum import weighted_sum


def grouped_experts(
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
    """See `hybridrt.kernels.moe.stacked_moe_experts`; what `can_group` says is taken."""
    if len(x) == 0:
        return x.new_zeros(x.shape)
    spread = spread_rows(x, expert_ids, len(gate_up))
    inner = Inner(gate_up_bias, down_bias, gating, alpha, limit)
    out = multiply_groups(spread.rows, gate_up, down, inner, spread.expert_ids, spread.ends)
    return weighted_sum(out, weights, spread.places, x.dtype)


def grouped_relu2_experts(
    x: Float[Tensor, "tokens hidden"],
    up: Float[Tensor, "experts inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens hidden"]:
    """See `hybridrt.kernels.relu2_moe.stacked_relu2_experts`."""
    spread = spread_rows(x, expert_ids, len(up))
    inner = F.grouped_mm(spread.rows, up.transpose(1, 2), offs=spread.ends)
    out = F.grouped_mm(relu2(inner), down.transpose(1, 2), offs=spread.ends)
    return weighted_sum(out, weights, spread.places, x.dtype)
