"""causal_conv1d in numba: one pass over the tokens of all rows, with the activation."""

from typing import Literal, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.fast_exp import fast_exp
from hybridrt.kernels.cpu.flat import flat_rows, row_starts
from hybridrt.kernels.reference import causal_conv1d as reference

CHANNELS = 256  # a thread's share: what a token needs of it stays in its L1 cache
LARGEST = np.float32(88)  # that `fast_exp` takes


def causal_conv1d(
    x: Float[Tensor, "tokens channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None,
    conv_state: Float[Tensor, "pages history channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    activation: Literal["silu"] | None = "silu",
) -> Float[Tensor, "tokens channels"]:
    """See `hybridrt.kernels.causal_conv1d`."""
    if x.dtype != torch.float32 or conv_state.dtype != torch.float32:  # numba has no bfloat16
        args = (x, weight, bias, conv_state, pages, initial_pages, batch, activation)
        return reference.causal_conv1d(*args)
    if x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape)
    taps = weight.float().t().contiguous()
    shift = torch.zeros(x.shape[1]) if bias is None else bias.float()
    _convolve(  # pyright: ignore[reportCallIssue]
        flat_rows(x),
        x.stride(0),
        taps.numpy(),
        shift.numpy(),
        batch.cu_seqlens_q.numpy(),
        batch.has_initial_state.numpy(),
        *row_starts(conv_state, pages, initial_pages),
        flat_rows(conv_state),
        activation is not None,
        out.numpy(),
    )
    return out


@numba.njit(parallel=True, fastmath={"contract", "nsz", "arcp"}, cache=True)
@no_type_check
def _convolve(  # pragma: no cover  (compiled)
    x, stride, taps, bias, cu_seqlens, has_initial, sources, targets, states, silu, out
):
    width, channels = taps.shape
    history = width - 1
    for block in numba.prange((channels + CHANNELS - 1) // CHANNELS):
        first = block * CHANNELS
        size = min(CHANNELS, channels - first)
        zeros = np.zeros(size, np.float32)
        for row in range(len(targets)):
            begin, end = cu_seqlens[row], cu_seqlens[row + 1]
            for t in range(begin, end):
                total = out[t, first : first + size]
                total[:] = bias[first : first + size]
                for k in range(width):
                    back = t - begin + k - history  # the tap's token; below 0 in the state
                    if back >= 0:
                        place = (begin + back) * stride + first
                        seen = x[place : place + size]
                    elif has_initial[row]:
                        place = sources[row] + (history + back) * channels + first
                        seen = states[place : place + size]
                    else:
                        seen = zeros
                    tap = taps[k, first : first + size]
                    for c in range(size):
                        total[c] += tap[c] * seen[c]
                if silu:
                    for c in range(size):
                        v = total[c]
                        sigmoid = np.float32(1) / (np.float32(1) + fast_exp(min(-v, LARGEST)))
                        total[c] = np.float32(0) if v < -LARGEST else v * sigmoid
            for k in range(history):  # from the oldest on, so that a page may be its own source
                back = end - begin + k - history
                place = targets[row] + k * channels + first
                left = states[place : place + size]
                if back >= 0:
                    place = (begin + back) * stride + first
                    left[:] = x[place : place + size]
                elif has_initial[row]:
                    place = sources[row] + (history + back) * channels + first
                    left[:] = states[place : place + size]
                else:
                    left[:] = 0
