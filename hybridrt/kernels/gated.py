"""Some values gate others."""

from math import inf

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.backend import numba_takes
from hybridrt.kernels.reference import gates as reference
from hybridrt.kernels.reference.gates import Gating


def gated(
    gate_up: Float[Tensor, "*batch twice_inner"],
    gating: Gating = "silu",
    alpha: float = 1.0,
    limit: float = inf,
) -> Float[Tensor, "*batch inner"]:
    """`act(gate) * up`, where the gate is the first half of the last axis, or as `gating` says.

    See `hybridrt.kernels.reference.gates` for all of them.
    """
    if gating == "silu" and numba_takes(gate_up):
        from hybridrt.kernels.cpu import gated as cpu

        return cpu.silu_gated(gate_up)
    return reference.gated(gate_up, gating, alpha, limit)


def gated_by(
    values: Float[Tensor, "tokens size"], gate: Float[Tensor, "tokens size"]
) -> Float[Tensor, "tokens size"]:
    """`silu(gate) * values`."""
    if numba_takes(values, gate):
        from hybridrt.kernels.cpu import gated as cpu

        return cpu.silu_times(gate, values)
    return values * F.silu(gate)


def add_gated(
    values: Float[Tensor, "tokens size"],
    more: Float[Tensor, "tokens size"],
    gate: Float[Tensor, "tokens one"],
) -> Float[Tensor, "tokens size"]:
    """`values + sigmoid(gate) * more`, with one gate a token."""
    if numba_takes(values, more, gate):
        from hybridrt.kernels.cpu import gated as cpu

        return cpu.add_gated(values, more, gate)
    return values + gate.sigmoid() * more
