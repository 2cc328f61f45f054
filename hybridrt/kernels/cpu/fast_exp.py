"""exp for float32 that LLVM turns into vector code, which its call of the C library is not."""

from typing import no_type_check

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hybridrt.kernels.cpu.jit import inlined

LOG2_E = np.float32(1.4426950408889634)
SMALLEST = np.float32(-126)  # powers of two below are no normal numbers, and near enough to 0
# 2 ** f on [-0.5, 0.5]: the polynomial that begins with 1 whose largest relative error, 2e-9, is
# the smallest.
POWERS = tuple(
    np.float32(c)
    for c in (
        1.0,
        0.693147203,
        0.240226479,
        0.0555033247,
        0.00961843736,
        0.00133988745,
        0.00015353362,
    )
)


@intrinsic
@no_type_check
def _float32_of_bits(typing_context, bits):
    """The float32 with these bits."""

    def code(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), code


@inlined
@no_type_check
def fast_exp(x):  # pragma: no cover  (compiled)
    """`exp(x)` for a float32 `x <= 88`, with a relative error of at most 2e-7 + 8e-8 * |x|.

    About 1e-38 for x below -87.
    """
    y = max(x * LOG2_E, SMALLEST)
    whole = np.floor(y + np.float32(0.5))
    f = y - whole
    p = POWERS[6]
    p = p * f + POWERS[5]
    p = p * f + POWERS[4]
    p = p * f + POWERS[3]
    p = p * f + POWERS[2]
    p = p * f + POWERS[1]
    p = p * f + POWERS[0]
    bits = (np.int32(whole) + np.int32(127)) << np.int32(23)
    return p * _float32_of_bits(bits)  # pyright: ignore[reportCallIssue]
