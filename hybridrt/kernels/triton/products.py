"""Products of matrices, one or both of float32, on tensor cores."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit


@jit
@no_type_check
def add_product(a, b, total, PARTS: tl.constexpr):
    """`total + a @ b`: a side of float32 beside one of bfloat16 is taken as so many parts of that.

    Three have all of float32's digits, two have 16 bits. They cost half of what float32 does,
    as the other side is exact.
    """
    if b.dtype == tl.bfloat16:
        a = a.to(tl.float32)
        for _ in tl.static_range(PARTS):
            part = a.to(tl.bfloat16)
            total = tl.dot(part, b, total)
            a -= part.to(tl.float32)
        return total
    elif a.dtype == tl.bfloat16:
        b = b.to(tl.float32)
        for _ in tl.static_range(PARTS):
            part = b.to(tl.bfloat16)
            total = tl.dot(a, part, total)
            b -= part.to(tl.float32)
        return total
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=FLOAT32_DOT)
