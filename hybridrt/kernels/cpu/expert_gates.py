"""The gates of experts, on some float32 values; see `hybridrt.kernels.reference.gates`."""

from math import erf, inf, pi, sqrt
from typing import NamedTuple, no_type_check

import numpy as np

from hybridrt.kernels.cpu.bfloat16 import halves, narrow, singles
from hybridrt.kernels.cpu.gated import sigmoid, times_sigmoid
from hybridrt.kernels.cpu.jit import argument, inline, inlined, inner_fast
from hybridrt.kernels.cpu.vector_math import add, fma, less_of, more_of, mul, splat
from hybridrt.kernels.cpu.vectors import LANES, load_up_to, pointer, store_up_to
from hybridrt.kernels.reference.gates import Gating

SIGMOID, ERF, BENT, SQUARED_RELU = range(4)


@argument
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


@inline
@no_type_check
def _apply_sigmoid(how, gates, ups, i, count, out):  # pragma: no cover
    """See `Gate`. Comparisons with NaN leave it what it is."""
    slope, cubic = splat(np.float32(how.slope)), splat(np.float32(how.cubic))
    limit = np.float32(how.limit)
    g = less_of(splat(limit), load_up_to(gates, i, count))
    u = more_of(splat(-limit), less_of(splat(limit), load_up_to(ups, i, count)))
    bent = mul(g, fma(mul(cubic, g), g, slope))
    gated = mul(times_sigmoid(g, bent), add(u, splat(np.float32(how.shift))))
    store_up_to(gated, out, i, count)


@inner_fast
@no_type_check
def apply_gate(how, gate, up, step, out, out_step, count, size):  # pragma: no cover
    """Writes `count` rows of `size` values, in bfloat16.

    `gate`, `up` and `out` are addresses of first rows, and steps are numbers from row to row.
    """
    slope, limit = np.float32(how.slope), np.float32(how.limit)
    for t in range(count):
        g, u = singles(gate + 4 * t * step, size), singles(up + 4 * t * step, size)
        result = halves(out + 2 * t * out_step, size)
        if how.kind == SIGMOID:
            gates, ups, results = pointer(g), pointer(u), pointer(result)
            for i in range(0, size, LANES):
                _apply_sigmoid(how, gates, ups, i, size - i, results)
        elif how.kind == ERF:
            for i in range(size):
                share = np.float32(0.5 + 0.5 * erf(g[i] * sqrt(0.5)))
                result[i] = narrow(g[i] * share * u[i])
        elif how.kind == BENT:
            for i in range(size):
                bent = _bend(g[i], slope) * sigmoid(g[i])
                result[i] = narrow(bent * _bend(u[i], limit))
        else:
            for i in range(size):
                more = u[i] if u[i] > 0 or u[i] != u[i] else np.float32(0)
                result[i] = narrow(more * more)
