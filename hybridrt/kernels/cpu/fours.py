"""Four vectors at a time: as many sums as hide how long one product takes."""

from typing import no_type_check

import numpy as np

from hybridrt.kernels.cpu.jit import inline
from hybridrt.kernels.cpu.vector_math import fma, mul, splat
from hybridrt.kernels.cpu.vectors import LANES, load, store

FOUR = 4 * LANES


@inline
@no_type_check
def fma4(a, b, sums):  # pragma: no cover  (compiled)
    """`a * b + sums` for one `a`."""
    return (
        fma(a, b[0], sums[0]),
        fma(a, b[1], sums[1]),
        fma(a, b[2], sums[2]),
        fma(a, b[3], sums[3]),
    )


@inline
@no_type_check
def zeros4():  # pragma: no cover
    """Four vectors of zeros."""
    zero = splat(np.float32(0))
    return (zero, zero, zero, zero)


@inline
@no_type_check
def load4(at_first, place):  # pragma: no cover
    """Four vectors, one behind the other."""
    return (
        load(at_first, place),
        load(at_first, place + LANES),
        load(at_first, place + 2 * LANES),
        load(at_first, place + 3 * LANES),
    )


@inline
@no_type_check
def store4(vectors, at_first, place):  # pragma: no cover
    """Writes four vectors, one behind the other."""
    store(vectors[0], at_first, place)
    store(vectors[1], at_first, place + LANES)
    store(vectors[2], at_first, place + 2 * LANES)
    store(vectors[3], at_first, place + 3 * LANES)


@inline
@no_type_check
def mul4(vectors, factor):  # pragma: no cover
    """Four vectors times one."""
    return (
        mul(vectors[0], factor),
        mul(vectors[1], factor),
        mul(vectors[2], factor),
        mul(vectors[3], factor),
    )
