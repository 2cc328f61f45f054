"""The gates of experts, on some float32 values; see `hybridrt.kernels.reference.gates`."""

from math import erf, inf, pi, sqrt
from typing import NamedTuple, no_type_check

import numpy as np

from hybridrt.kernels.cpu.bfloat16 import narrow
from hybridrt.kernels.cpu.gated import sigmoid
from hybridrt.kernels.cpu.jit import inlined, inner_fast
from hybridrt.kernels.reference.gates import Gating

SIGMOID, ERF, BENT, SQUARED_RELU = range(4)


class Gate(NamedTuple):
    """One function for most gates: `g * sigmoid(slope * g + cubic * g^3) * (u + shift)`.

    There the gate is at most `limit`, and `u` within `-limit .. limit`. `ERF` is GELU; `BENT` has
    its two caps in `slope` and `limit`; `SQUARED_RELU` has no gate. Those `by_turns` have the rows
    of the gate and of `up` one by one.
    """

    kind: int = SIGMOID
    slope: float = 1.0
    cubic: float = 0.0
    shift: float = 0.0
    limit: float = inf
    by_turns: bool = False


def make_gate(gating: Gating, alpha: float, limit: float) -> Gate:
    """The gate of that name."""
    tanh = 2 * sqrt(2 / pi)  # (1 + tanh(x)) / 2 is sigmoid(2 x)
    gates = {
        "silu": Gate(),
        "silu by turns": Gate(by_turns=True),
        "limited": Gate(limit=limit),
        "clamped": Gate(slope=alpha, shift=1.0, limit=limit, by_turns=True),
        "clamped halves": Gate(slope=alpha, shift=1.0, limit=limit),
        "gelu_pytorch_tanh": Gate(slope=tanh, cubic=0.044715 * tanh),
        "gelu": Gate(ERF),
        "bent by turns": Gate(BENT, slope=alpha, limit=limit, by_turns=True),
    }
    return gates[gating]


@inlined
@no_type_check
def _bend(x, cap):  # pragma: no cover  (compiled, as all below)
    """`cap * tanh(x / cap)`."""
    return cap * np.float32(np.tanh(x / cap))


@inner_fast
@no_type_check
def apply_gate(how, gate, up, size, out):  # pragma: no cover
    """Writes `size` values to `out`, in bfloat16."""
    slope, cubic = np.float32(how.slope), np.float32(how.cubic)
    shift, limit = np.float32(how.shift), np.float32(how.limit)
    if how.kind == SIGMOID:
        for i in range(size):
            g = limit if gate[i] > limit else gate[i]
            u = limit if up[i] > limit else up[i]
            u = -limit if u < -limit else u
            out[i] = narrow(g * sigmoid(g * (slope + cubic * g * g)) * (u + shift))
    elif how.kind == ERF:
        for i in range(size):
            share = np.float32(0.5 + 0.5 * erf(gate[i] * sqrt(0.5)))
            out[i] = narrow(gate[i] * share * up[i])
    elif how.kind == BENT:
        for i in range(size):
            g = _bend(gate[i], slope) * sigmoid(gate[i])
            out[i] = narrow(g * _bend(up[i], limit))
    else:
        for i in range(size):
            u = up[i] if up[i] > 0 or up[i] != up[i] else np.float32(0)
            out[i] = narrow(u * u)
