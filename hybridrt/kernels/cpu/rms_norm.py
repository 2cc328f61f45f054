"""rms_norm in numba, of bfloat16: one pass over a row for its length, one for the result.

A sum is written by a pass before those, row by row, so that they find it in the nearest cache.
"""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves
from hybridrt.kernels.cpu.elementwise import add_part
from hybridrt.kernels.cpu.jit import inner_exact, inner_fast
from hybridrt.kernels.cpu.share import jobs_of, parallel_kernel, share, share_each, threads_for
from hybridrt.kernels.cpu.vector_math import add, fma, mul, splat, sum_of_lanes
from hybridrt.kernels.cpu.vectors import LANES, load_up_to, pointer, prefetch, store_up_to


def rms_norm(
    x: BFloat16[Tensor, "*rows size"],
    weight: BFloat16[Tensor, " size"],
    eps: float,
    offset: float,
) -> BFloat16[Tensor, "*rows size"]:
    """See `hybridrt.kernels.rms_norm`."""
    out, size, weight = torch.empty(x.shape, dtype=x.dtype), x.shape[-1], weight.contiguous()
    if x.dim() > 3 or x.stride(-1) != 1:
        x = x.contiguous().view(-1, size)
    outer = x.shape[0] if x.dim() > 1 else 1
    inner = x.shape[1] if x.dim() == 3 else 1
    strides = (x.stride(0) if x.dim() > 1 else 0, x.stride(1) if x.dim() == 3 else 0)
    sizes = outer, inner, size
    places = x.data_ptr(), *strides, weight.data_ptr(), out.data_ptr()
    _norm_all(threads_for(x.numel()), *places, *sizes, eps, offset)
    return out


def add_rms_norm(
    x: BFloat16[Tensor, "*rows size"],
    y: BFloat16[Tensor, "*rows size"],
    weight: BFloat16[Tensor, " size"],
    eps: float,
    offset: float,
    scale: float,
) -> tuple[BFloat16[Tensor, "*rows size"], BFloat16[Tensor, "*rows size"]]:
    """See `hybridrt.kernels.rms_norm`."""
    x, y, weight = x.contiguous(), y.contiguous(), weight.contiguous()
    shape, count = x.shape, x.numel()
    total, out = torch.empty(shape, dtype=x.dtype), torch.empty(shape, dtype=x.dtype)
    _add_norm_all(
        threads_for(count),
        *(x.data_ptr(), y.data_ptr(), weight.data_ptr(), total.data_ptr(), out.data_ptr()),
        *(count // shape[-1], shape[-1], eps, offset, float(scale)),
    )
    return total, out


@inner_exact
@no_type_check
def _norm(x, weight, out, size, eps, offset, ahead, more_ahead):  # pragma: no cover  (compiled)
    """A row. Meanwhile it begins to read those that are needed next, at two addresses.

    Exact, as fast mathematics divides by `size` in a loop over rows in another way than elsewhere.
    """
    of_x, of_w = pointer(halves(x, size)), pointer(halves(weight, size))
    result, shift = pointer(halves(out, size)), splat(np.float32(offset))
    # By vectors, as a compiler would add in another order wherever this becomes part of a loop.
    squares, more = splat(np.float32(0)), splat(np.float32(0))
    for i in range(0, size, 2 * LANES):
        one = load_up_to(of_x, i, size - i)
        other = load_up_to(of_x, i + LANES, size - i - LANES)
        squares, more = fma(one, one, squares), fma(other, other, more)
    mean = sum_of_lanes(add(squares, more)) / np.float32(size)
    scale = splat(np.float32(1) / np.sqrt(mean + np.float32(eps)))
    coming, more_coming = pointer(halves(ahead, size)), pointer(halves(more_ahead, size))
    for i in range(0, size, LANES):
        count = size - i
        weights = add(load_up_to(of_w, i, count), shift)
        store_up_to(mul(mul(load_up_to(of_x, i, count), scale), weights), result, i, count)
        prefetch(coming, i)
        prefetch(more_coming, i)


@inner_fast
@no_type_check
def _norm_rows(
    worker, workers, x, stride, inner_stride, weight, out, outer, inner, size, eps, offset
):  # fmt: skip  # pragma: no cover
    first, last = jobs_of(worker, workers, outer)
    for row in range(first * inner, last * inner):
        here = x + 2 * (row // inner * stride + row % inner * inner_stride)
        then = here + 2 * stride  # the same of the next token
        _norm(here, weight, out + 2 * row * size, size, eps, offset, then, then)


@parallel_kernel
@no_type_check
def _norm_all(
    threads, x, stride, inner_stride, weight, out, outer, inner, size, eps, offset
):  # fmt: skip  # pragma: no cover
    given = x, stride, inner_stride, weight, out, outer, inner, size, eps, offset
    share(_norm_rows, threads, given)


@inner_fast
@no_type_check
def _add_norm(row, x, y, weight, total, out, size, eps, offset, scale):  # pragma: no cover
    add_part(x, y, total, row * size, (row + 1) * size, scale)
    here, then = 2 * row * size, 2 * (row + 1) * size
    _norm(total + here, weight, out + here, size, eps, offset, x + then, y + then)


@parallel_kernel
@no_type_check
def _add_norm_all(
    threads, x, y, weight, total, out, rows, size, eps, offset, scale
):  # fmt: skip  # pragma: no cover
    given = x, y, weight, total, out, size, eps, offset, scale
    share_each(_add_norm, threads, rows, given)
