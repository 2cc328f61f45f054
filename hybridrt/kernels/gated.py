"""Some values gate others."""

from math import inf

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.backend import numba_takes, triton_takes
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
    if triton_takes(gate_up):
        from hybridrt.kernels.triton import gated as on_gpu

        return on_gpu.gated(gate_up, gating, alpha, limit)
    return reference.gated(gate_up, gating, alpha, limit)


def gated_by(
    values: Float[Tensor, "tokens size"], gate: Float[Tensor, "tokens size"]
) -> Float[Tensor, "tokens size"]:
    """`silu(gate) * values`."""
    if numba_takes(values, gate):
        from hybridrt.kernels.cpu import gated as cpu

        return cpu.silu_times(gate, values)
    if triton_takes(values):
        from hybridrt.kernels.triton import gated as on_gpu

        return on_gpu.gated_by(values, gate)
    return values * F.silu(gate)


def sigmoid_gated(
    values: Float[Tensor, "*batch size"], gate: Float[Tensor, "*batch size_or_one"]
) -> Float[Tensor, "*batch size"]:
    """`sigmoid(gate) * values`, with a gate each, or one for all of the last axis."""
    if numba_takes(values, gate):
        from hybridrt.kernels.cpu import gated as cpu

        return cpu.sigmoid_gated(values, gate)
    if triton_takes(values):
        from hybridrt.kernels.triton import gated as on_gpu

        return on_gpu.sigmoid_gated(values, gate)
    return values * torch.sigmoid(gate)


def add_gated(
    values: Float[Tensor, "tokens size"],
    more: Float[Tensor, "tokens size"],
    gate: Float[Tensor, "tokens one"],
) -> Float[Tensor, "tokens size"]:
    """`values + sigmoid(gate) * more`, with one gate a token."""
    if numba_takes(values, more, gate):
        from hybridrt.kernels.cpu import gated as cpu

        return cpu.add_gated(values, more, gate)
    if triton_takes(values):
        from hybridrt.kernels.triton import gated as on_gpu

        return on_gpu.add_gated(values, more, gate)
    return values + gate.sigmoid() * more
