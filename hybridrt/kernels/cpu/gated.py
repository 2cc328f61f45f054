"""SwiGLU's gate, sigmoids as gates, and one of a whole token, in numba, of bfloat16."""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, narrow, widen
from hybridrt.kernels.cpu.fast_exp import fast_exp
from hybridrt.kernels.cpu.jit import inline, inlined, inner_exact, inner_sums
from hybridrt.kernels.cpu.share import parallel_kernel, share_each, threads_for
from hybridrt.kernels.cpu.vector_math import add, div, exp, less_of, mul, splat
from hybridrt.kernels.cpu.vectors import LANES, load_up_to, pointer, prefetch, store_up_to

LARGEST = np.float32(88)  # that `fast_exp` takes
INFINITE = np.float32(89)  # for which `vector_math.exp` gives infinity, and beyond it nothing


def silu_gated(
    gate_up: BFloat16[Tensor, "*batch twice_inner"],
) -> BFloat16[Tensor, "*batch inner"]:
    """`silu(gate) * up`, rounded once."""
    *batch, twice = gate_up.shape
    gate, up = gate_up.reshape(-1, twice).chunk(2, dim=-1)
    return silu_times(gate, up).view(*batch, twice // 2)


def silu_times(
    gate: BFloat16[Tensor, "tokens size"], up: BFloat16[Tensor, "tokens size"]
) -> BFloat16[Tensor, "tokens size"]:
    """`silu(gate) * up`, rounded once."""
    gate, up = (part if part.stride(1) == 1 else part.contiguous() for part in (gate, up))
    out = torch.empty(gate.shape, dtype=gate.dtype)
    places = gate.data_ptr(), gate.stride(0), up.data_ptr(), up.stride(0), out.data_ptr()
    _gate_all(threads_for(2 * out.numel()), *places, *out.shape)
    return out


def sigmoid_gated(
    values: BFloat16[Tensor, "*batch size"], gate: BFloat16[Tensor, "*batch size_or_one"]
) -> BFloat16[Tensor, "*batch size"]:
    """`sigmoid(gate) * values`, rounded once."""
    out = torch.empty(values.shape, dtype=values.dtype)
    rows = [part.flatten(0, -2) for part in (values, gate)]
    values, gate = (part if part.stride(1) == 1 else part.contiguous() for part in rows)
    places = values.data_ptr(), values.stride(0), gate.data_ptr(), gate.stride(0), out.data_ptr()
    _weigh_all(threads_for(out.numel()), *places, gate.shape[1], *values.shape)
    return out


def add_gated(
    values: BFloat16[Tensor, "tokens size"],
    more: BFloat16[Tensor, "tokens size"],
    gate: BFloat16[Tensor, "tokens one"],
) -> BFloat16[Tensor, "tokens size"]:
    """`values + sigmoid(gate) * more`, rounded once."""
    values, more, gate = values.contiguous(), more.contiguous(), gate.contiguous()
    out = torch.empty(values.shape, dtype=values.dtype)
    places = values.data_ptr(), more.data_ptr(), gate.data_ptr(), out.data_ptr()
    _add_all(threads_for(out.numel()), *places, *out.shape)
    return out


@inlined
@no_type_check
def sigmoid(x):  # pragma: no cover  (compiled, as all below)
    """`1 / (1 + exp(-x))` of a float32."""
    return np.float32(1) / (np.float32(1) + fast_exp(min(-x, LARGEST)))


@inline
@no_type_check
def times_sigmoid(x, of):  # pragma: no cover
    """`x * sigmoid(of)` in each lane."""
    one = splat(np.float32(1))
    power = exp(less_of(splat(INFINITE), mul(of, splat(np.float32(-1)))))
    return div(x, add(one, power))


@inner_exact  # so that `packed_gated` gives the same bits
@no_type_check
def _gate(row, gate, gate_stride, up, up_stride, out, size):  # pragma: no cover
    """A row. Meanwhile it begins to read the next one."""
    gate, up, out = gate + 2 * row * gate_stride, up + 2 * row * up_stride, out + 2 * row * size
    given, values = pointer(halves(gate, size)), pointer(halves(up, size))
    result = pointer(halves(out, size))
    for i in range(0, size, LANES):
        x = load_up_to(given, i, size - i)
        gated = mul(times_sigmoid(x, x), load_up_to(values, i, size - i))
        store_up_to(gated, result, i, size - i)
        prefetch(given, gate_stride + i)
        prefetch(values, up_stride + i)


@parallel_kernel
@no_type_check
def _gate_all(threads, gate, gate_stride, up, up_stride, out, rows, size):  # pragma: no cover
    share_each(_gate, threads, rows, (gate, gate_stride, up, up_stride, out, size))


@inner_exact
@no_type_check
def _weigh(row, values, value_stride, gate, gate_stride, out, gates, size):  # pragma: no cover
    """A row, with one gate or as many `gates` as values."""
    given, result = pointer(halves(values + 2 * row * value_stride, size)), out + 2 * row * size
    of_row, result = halves(gate + 2 * row * gate_stride, gates), pointer(halves(result, size))
    for i in range(0, size, LANES):
        of = splat(widen(of_row[0])) if gates == 1 else load_up_to(pointer(of_row), i, size - i)
        store_up_to(times_sigmoid(load_up_to(given, i, size - i), of), result, i, size - i)


@parallel_kernel
@no_type_check
def _weigh_all(
    threads, values, value_stride, gate, gate_stride, out, gates, rows, size
):  # fmt: skip  # pragma: no cover
    share_each(_weigh, threads, rows, (values, value_stride, gate, gate_stride, out, gates, size))


@inner_sums
@no_type_check
def _add(t, values, more, gate, out, size):  # pragma: no cover
    given, gated = halves(values + 2 * t * size, size), halves(more + 2 * t * size, size)
    result, share = halves(out + 2 * t * size, size), sigmoid(widen(halves(gate + 2 * t, 1)[0]))
    for i in range(size):
        result[i] = narrow(widen(given[i]) + share * widen(gated[i]))


@parallel_kernel
@no_type_check
def _add_all(threads, values, more, gate, out, tokens, size):  # pragma: no cover
    share_each(_add, threads, tokens, (values, more, gate, out, size))
