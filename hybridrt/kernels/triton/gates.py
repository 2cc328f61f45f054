"""The gates of `hybridrt.kernels.reference.gates`, in Triton."""

from typing import Literal, no_type_check

import triton.language as tl

from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.triton.launch import jit

_ROOT_HALF = tl.constexpr(0.7071067811865476)
_ROOT_2_OVER_PI = tl.constexpr(0.7978845608028654)


def kind_of(gating: Gating | Literal["relu2"]) -> tuple[str, bool]:
    """The gate's function, and whether `gate` and `up` take turns."""
    if gating == "clamped":
        return "clamped", True
    if gating == "clamped halves":
        return "clamped", False
    return gating.removesuffix(" by turns"), gating.endswith(" by turns")


@jit
@no_type_check
def sigmoid(x):
    """Where no power of e overflows."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1 + small)


@jit
@no_type_check
def tanh(x):
    """Where no power of e overflows. Near 0 by its series, since there 1 less one is inexact."""
    small = tl.exp(-2 * tl.abs(x))
    size = (1 - small) / (1 + small)
    square = tl.minimum(x * x, 1.0)
    near = x * (1 + square * (-1 / 3 + square * (2 / 15 - square * (17 / 315))))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0, -size, size))


@jit
@no_type_check
def at_most(x, limit):
    """The smaller; of what is no number, itself."""
    return tl.where(x > limit, limit, x)


@jit
@no_type_check
def gated(gate, up, alpha, limit, GATING: tl.constexpr):
    """What the gate lets through, in float32. GATING is `Gating` less where the parts stand."""
    if GATING == "clamped":
        gate = at_most(gate, limit)
        up = -at_most(-at_most(up, limit), limit)
        return gate * sigmoid(alpha * gate) * (up + 1)
    elif GATING == "bent":
        return alpha * tanh(gate / alpha) * sigmoid(gate) * limit * tanh(up / limit)
    elif GATING == "gelu":
        return 0.5 * gate * (1 + tl.erf(gate * _ROOT_HALF)) * up
    elif GATING == "gelu_pytorch_tanh":
        inner = _ROOT_2_OVER_PI * (gate + 0.044715 * gate * gate * gate)
        return 0.5 * gate * (1 + tanh(inner)) * up
    else:
        if GATING == "limited":
            gate = at_most(gate, limit)
            up = -at_most(-at_most(up, limit), limit)
        elif GATING == "silu of scaled":
            gate *= alpha
        return gate * sigmoid(gate) * up
