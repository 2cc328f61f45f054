"""SwiGLU's gate in numba, of bfloat16."""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, narrow, widen
from hybridrt.kernels.cpu.fast_exp import fast_exp
from hybridrt.kernels.cpu.jit import FEW, inlined, inner_fast, kernel, parallel_kernel

LARGEST = np.float32(88)  # that `fast_exp` takes


def silu_gated(
    gate_up: BFloat16[Tensor, "*batch twice_inner"],
) -> BFloat16[Tensor, "*batch inner"]:
    """`silu(gate) * up`, rounded once."""
    gate_up = gate_up.contiguous()
    *batch, twice = gate_up.shape
    out = torch.empty((*batch, twice // 2), dtype=gate_up.dtype)
    run = _gate_few if gate_up.numel() <= FEW else _gate_many
    run(gate_up.data_ptr(), out.data_ptr(), out.numel() // max(1, twice // 2), twice // 2)
    return out


@inlined
@no_type_check
def sigmoid(x):  # pragma: no cover  (compiled, as all below)
    """`1 / (1 + exp(-x))` of a float32."""
    return np.float32(1) / (np.float32(1) + fast_exp(min(-x, LARGEST)))


@inlined
@no_type_check
def silu(x):  # pragma: no cover
    """`x * sigmoid(x)` of a float32."""
    return np.float32(0) if x < -LARGEST else x * sigmoid(x)


@inner_fast
@no_type_check
def _gate(gate_up, out, size):  # pragma: no cover
    gate, up, result = halves(gate_up, size), halves(gate_up + 2 * size, size), halves(out, size)
    for i in range(size):
        result[i] = narrow(silu(widen(gate[i])) * widen(up[i]))


@kernel
@no_type_check
def _gate_few(gate_up, out, rows, size):  # pragma: no cover
    for row in range(rows):
        _gate(gate_up + 4 * row * size, out + 2 * row * size, size)


@parallel_kernel
@no_type_check
def _gate_many(gate_up, out, rows, size):  # pragma: no cover
    for row in numba.prange(rows):
        _gate(gate_up + 4 * row * size, out + 2 * row * size, size)
