"""scan_inputs in numba, of steps in bfloat16."""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import BFloat16, Float, Float32
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, singles, widen
from hybridrt.kernels.cpu.fast_exp import fast_exp
from hybridrt.kernels.cpu.jit import inner_fast
from hybridrt.kernels.cpu.share import jobs_of, numbers_of, parallel_kernel, share, threads_for
from hybridrt.kernels.cpu.softplus import softplus


def scan_inputs(
    dt: BFloat16[Tensor, "tokens channels"],
    dt_bias: Float[Tensor, " channels"] | None,
    A_log: Float32[Tensor, " channels *state_size"],
    limits: tuple[float, float],
) -> tuple[Float32[Tensor, "tokens channels"], Float32[Tensor, " channels *state_size"]]:
    """See `hybridrt.kernels.scan_inputs`."""
    dt = dt if dt.stride(1) == 1 else dt.contiguous()
    bias, A_log = None if dt_bias is None else dt_bias.float().contiguous(), A_log.float()
    steps, rates = torch.empty(dt.shape, dtype=torch.float32), torch.empty_like(A_log)
    _all(
        threads_for(dt.numel() + rates.numel()),
        *(dt.data_ptr(), dt.stride(0), 0 if bias is None else bias.data_ptr(), *limits),
        *(A_log.data_ptr(), steps.data_ptr(), *dt.shape, rates.data_ptr(), rates.numel()),
    )
    return steps, rates


@inner_fast
@no_type_check
def _steps(dt, bias, least, most, steps, channels):  # pragma: no cover  (compiled, as all below)
    given, result = halves(dt, channels), singles(steps, channels)
    for i in range(channels):
        result[i] = widen(given[i])
    if bias != 0:
        added = singles(bias, channels)
        for i in range(channels):
            result[i] += added[i]
    least, most = np.float32(least), np.float32(most)
    for i in range(channels):  # so that NaN stays what it is
        step = softplus(result[i])
        step = least if step < least else step
        result[i] = most if step > most else step


@inner_fast
@no_type_check
def _rates(A_log, rates, size):  # pragma: no cover
    given, result = singles(A_log, size), singles(rates, size)
    for i in range(size):
        result[i] = -fast_exp(given[i])


@inner_fast
@no_type_check
def _share(
    worker, workers, dt, stride, bias, least, most, A_log, steps, tokens, channels, rates, size
):  # fmt: skip  # pragma: no cover
    begin, end = jobs_of(worker, workers, tokens)
    for t in range(begin, end):
        _steps(dt + 2 * t * stride, bias, least, most, steps + 4 * t * channels, channels)
    begin, end = numbers_of(worker, workers, size)
    _rates(A_log + 4 * begin, rates + 4 * begin, end - begin)


@parallel_kernel
@no_type_check
def _all(
    threads, dt, stride, bias, least, most, A_log, steps, tokens, channels, rates, size
):  # fmt: skip  # pragma: no cover
    given = dt, stride, bias, least, most, A_log, steps, tokens, channels, rates, size
    share(_share, threads, given)
