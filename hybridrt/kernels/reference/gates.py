"""The functions by which half of a feed-forward layer's inner values gates the other half."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Activation = Literal["silu", "gelu", "gelu_pytorch_tanh"]
"""A function of the gate, by the name that configs have for it."""

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}

Gating = Literal[
    "silu",
    "gelu",
    "gelu_pytorch_tanh",
    "silu of scaled",
    "clamped",
    "clamped halves",
    "limited",
    "silu by turns",
    "bent by turns",
]
"""An activation of the first half, times the second; or what `gated` has another function for."""


def gated(
    gate_up: Float[Tensor, "*batch twice_inner"], gating: Gating, alpha: float, limit: float
) -> Float[Tensor, "*batch inner"]:
    """`act(gate) * up`, where the gate is the first half.

    In `silu of scaled` the gate is multiplied by `alpha` first (Falcon-H1, arXiv 2507.22448).
    In `clamped` and what is `by turns` gate and `up` take turns in the last axis, the gate first.
    """
    if gating == "clamped":
        return clamped_swiglu(gate_up, alpha, limit)
    if gating == "clamped halves":
        return clamped_halves_swiglu(gate_up, alpha, limit)
    if gating == "limited":
        return limited_swiglu(gate_up, limit)
    if gating == "bent by turns":
        return bent_swiglu(gate_up, alpha, limit)
    if gating == "silu by turns":
        return F.silu(gate_up[..., 0::2]).mul_(gate_up[..., 1::2])
    gate, up = gate_up.chunk(2, dim=-1)
    if gating == "silu of scaled":
        return F.silu(alpha * gate).mul_(up)
    return ACTIVATIONS[gating](gate).mul_(up)


def clamped_swiglu(
    gate_up: Float[Tensor, "*batch twice_inner"], alpha: float, limit: float
) -> Float[Tensor, "*batch inner"]:
    """`gate * sigmoid(alpha * gate) * (up + 1)`, clamped before (gpt-oss, arXiv 2508.10925).

    The gate is at most `limit`, `up` within `-limit .. limit`. They take turns in the last
    axis, the gate first.
    """
    return _clamped(gate_up[..., 0::2], gate_up[..., 1::2], alpha, limit)


def clamped_halves_swiglu(
    gate_up: Float[Tensor, "*batch twice_inner"], alpha: float, limit: float
) -> Float[Tensor, "*batch inner"]:
    """`clamped_swiglu`, where the gate is the first half (MiniMax-M3)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return _clamped(gate, up, alpha, limit)


def _clamped(
    gate: Float[Tensor, "*batch inner"],
    up: Float[Tensor, "*batch inner"],
    alpha: float,
    limit: float,
) -> Float[Tensor, "*batch inner"]:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def limited_swiglu(
    gate_up: Float[Tensor, "*batch twice_inner"], limit: float
) -> Float[Tensor, "*batch inner"]:
    """`silu(gate) * up`, the gate at most `limit` and `up` within `-limit .. limit`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate.clamp(max=limit)).mul_(up.clamp(-limit, limit))


def bent_swiglu(
    gate_up: Float[Tensor, "*batch twice_inner"], alpha: float, limit: float
) -> Float[Tensor, "*batch inner"]:
    """`bend(gate, alpha) * sigmoid(gate) * bend(up, limit)`, by turns, in float32 (Inkling 2).

    `bend(x, cap)` is `cap * tanh(x / cap)`.
    """
    gate, up = gate_up[..., 0::2].float(), gate_up[..., 1::2].float()
    bent = alpha * torch.tanh(gate / alpha) * torch.sigmoid(gate)
    return (bent * limit * torch.tanh(up / limit)).to(gate_up.dtype)
