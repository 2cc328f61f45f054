"""Products of float32 with what may be bfloat16, on tensor cores."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit


@jit
@no_type_check
def add_split_product(sums, a, b, PARTS: tl.constexpr):
    """`sums + a @ b`, for a in float32. Three parts of bfloat16 are all digits of a float32.

    Only where b is bfloat16 is a taken apart; elsewhere both are.
    """
    if b.dtype == tl.bfloat16:
        for _ in tl.static_range(PARTS):
            part = a.to(tl.bfloat16)
            sums = tl.dot(part, b, sums)
            a -= part.to(tl.float32)
        return sums
    else:
        return tl.dot(a, b.to(tl.float32), sums, input_precision=FLOAT32_DOT)


@jit
@no_type_check
def add_product_with_split(sums, a, b, PARTS: tl.constexpr):
    """`sums + a @ b`, for b in float32; see `add_split_product`."""
    if a.dtype == tl.bfloat16:
        for _ in tl.static_range(PARTS):
            part = b.to(tl.bfloat16)
            sums = tl.dot(a, part, sums)
            b -= part.to(tl.float32)
        return sums
    else:
        return tl.dot(a.to(tl.float32), b, sums, input_precision=FLOAT32_DOT)
