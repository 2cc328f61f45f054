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

Gating = Literal["silu", "gelu", "gelu_pytorch_tanh", "clamped"]
"""An activation of the first half, times the second half; or see `clamped_swiglu`."""


def gated(
    gate_up: Float[Tensor, "*batch twice_inner"], gating: Gating, alpha: float, limit: float
) -> Float[Tensor, "*batch inner"]:
    """`act(gate) * up`, where the gate is the first half; `clamped` has its own order."""
    if gating == "clamped":
        return clamped_swiglu(gate_up, alpha, limit)
    gate, up = gate_up.chunk(2, dim=-1)
    return ACTIVATIONS[gating](gate).mul_(up)


def clamped_swiglu(
    gate_up: Float[Tensor, "*batch twice_inner"], alpha: float, limit: float
) -> Float[Tensor, "*batch inner"]:
    """`gate * sigmoid(alpha * gate) * (up + 1)`, clamped before (gpt-oss, arXiv 2508.10925).

    The gate is at most `limit`, `up` within `-limit .. limit`. They take turns in the last
    axis, the gate first.
    """
    gate, up = gate_up[..., 0::2].clamp(max=limit), gate_up[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)
