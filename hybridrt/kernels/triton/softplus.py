"""softplus in Triton."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import jit


@jit
@no_type_check
def softplus(x):
    """`log(1 + e^x)`, with all digits of tiny results too."""
    small = tl.exp(-tl.abs(x))
    # What is lost where 1 is added is lost below the line as well (Kahan's log1p).
    above = 1 + small
    behind = tl.where(
        above == 1, small, tl.log(above) * (small / tl.where(above == 1, 1, above - 1))
    )
    return tl.maximum(x, 0.0) + behind
