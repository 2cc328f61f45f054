"""The experts of a mixture together with one that sees every token."""

from typing import NamedTuple

from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.kernels.add import add
from hybridrt.kernels.backend import triton_takes
from hybridrt.kernels.gated import add_gated, gated
from hybridrt.kernels.linear import PackedMatrices, linear
from hybridrt.kernels.moe import moe_experts
from hybridrt.kernels.op import is_observed


class SharedExpert(NamedTuple):
    """The weights of a SwiGLU that sees every token.

    With a `gate` what it gives is scaled by the sigmoid of x times that.
    """

    gate_up: Float[Tensor, "twice_inner hidden"]
    down: Float[Tensor, "hidden inner"]
    gate: Float[Tensor, "1 hidden"] | None


def moe_with_shared(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"] | PackedMatrices,
    down: Float[Tensor, "experts hidden inner"] | PackedMatrices,
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    shared: SharedExpert,
) -> Float[Tensor, "tokens hidden"]:
    """`moe_experts` with SwiGLU, and what the shared expert gives beside it.

    On a GPU one token's are summed at once, in float32.
    """
    if isinstance(gate_up, Tensor) and isinstance(down, Tensor) and _runs_at_once(x, shared):
        from hybridrt.kernels.triton.one_row_experts import one_row_experts

        return one_row_experts(x, gate_up, down, expert_ids, weights, shared=shared)
    routed = moe_experts(x, gate_up, down, expert_ids, weights)
    out = linear(gated(linear(x, shared.gate_up, None)), shared.down, None)
    if shared.gate is None:
        return add(routed, out)
    return add_gated(routed, out, linear(x, shared.gate, None))


def _runs_at_once(x: Float[Tensor, "tokens hidden"], shared: SharedExpert) -> bool:
    """Whether a kernel can have both: one token on a GPU. Observers see the parts' contracts."""
    if not triton_takes(x) or is_observed():
        return False
    from hybridrt.kernels.triton.one_row import takes

    return all(takes(x, weight) for weight in shared if weight is not None)
