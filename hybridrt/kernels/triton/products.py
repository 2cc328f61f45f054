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


@jit
@no_type_check
def parts_of(x, dtype: tl.constexpr):
    """A number of float32 as the sum of two of 16 bits, or x twice in a wider dtype.

    bfloat16 keeps 16 bits of it, float16 has 22, of what its range has room for. By bits, as
    numbers are rounded one by one, at a quarter of the speed, if what was rounded is asked for in
    float32 again.
    """
    if dtype == tl.bfloat16:
        bits = (x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000
        high = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
        return high, (x - bits.to(tl.float32, bitcast=True)).to(tl.bfloat16)
    elif dtype == tl.float16:
        high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        return high.to(tl.float16), (x - high).to(tl.float16)
    else:
        return x.to(dtype), x.to(dtype)


@jit
@no_type_check
def add_parts(a, a_low, b, b_low, total):
    """`total + a @ b` of what `parts_of` gives, by three products of 16 bits.

    That is half of what float32 costs. Of wider dtypes the first parts are all, and a total of
    float64 is one of products in float64.
    """
    if a.dtype.primitive_bitwidth == 16:
        total = tl.dot(a, b_low, total)
        total = tl.dot(a_low, b, total)
        return tl.dot(a, b, total)
    else:
        dtype: tl.constexpr = total.dtype
        a, b = a.to(dtype), b.to(dtype)
        return tl.dot(a, b, total, input_precision=FLOAT32_DOT, out_dtype=dtype)


@jit
@no_type_check
def add_split(a, b, total, dtype: tl.constexpr):
    """`total + a @ b` of two sides that are taken as `parts_of` a dtype."""
    a, a_low = parts_of(a, dtype)
    b, b_low = parts_of(b, dtype)
    return add_parts(a, a_low, b, b_low, total)


@jit
@no_type_check
def store_parts(place, tile, i, c, ROOM: tl.constexpr, TOKENS: tl.constexpr):
    """Some channels of some tokens of a chunk, in parts."""
    at = place + (i * ROOM)[:, None] + c[None, :]
    dtype: tl.constexpr = place.dtype.element_ty
    tile, low = parts_of(tile, dtype)
    tl.store(at, tile)
    if dtype == tl.float16:
        tl.store(at + TOKENS * ROOM, low)
