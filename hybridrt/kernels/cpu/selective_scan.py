"""selective_scan in numba: each thread runs its channels through time, the state in cache."""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.fast_exp import fast_exp
from hybridrt.kernels.reference.states import load_states, store_states

CHANNELS = 64  # a thread's share: its states, and a token's x and dt, stay in its L1 cache


def selective_scan(
    x: Float[Tensor, "tokens channels"],
    dt: Float[Tensor, "tokens channels"],
    A: Float[Tensor, "channels state_size"],
    B: Float[Tensor, "tokens state_size"],
    C: Float[Tensor, "tokens state_size"],
    D: Float[Tensor, " channels"],
    ssm_state: Float[Tensor, "pages channels state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float[Tensor, "tokens channels"]:
    """See `hybridrt.kernels.selective_scan`."""
    y = torch.empty(x.shape, dtype=torch.float32)
    inputs = [_array(part) for part in (x, dt, A, B, C, D)]
    cu_seqlens, out = batch.cu_seqlens_q.numpy(), y.numpy()
    for rows in batch.turns:
        state = load_states(ssm_state, initial_pages, batch, rows, torch.float32)
        starts = cu_seqlens[rows.start : rows.stop + 1]
        _scan(*inputs, starts, state.numpy(), out)  # pyright: ignore[reportCallIssue]
        store_states(ssm_state, pages[rows], state)
    return y.to(x.dtype)


def _array(part: Tensor) -> np.ndarray:
    return part.float().contiguous().numpy()


@numba.njit(parallel=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, cache=True)
@no_type_check
def _scan(x, dt, A, B, C, D, cu_seqlens, state, y):  # pragma: no cover  (compiled)
    channels, state_size = A.shape
    for block in numba.prange((channels + CHANNELS - 1) // CHANNELS):
        first = block * CHANNELS
        last = min(first + CHANNELS, channels)
        for row in range(state.shape[0]):
            for t in range(cu_seqlens[row], cu_seqlens[row + 1]):
                for d in range(first, last):
                    step = dt[t, d]
                    update = step * x[t, d]
                    total = np.float32(0)
                    for n in range(state_size):
                        h = state[row, d, n] * fast_exp(step * A[d, n]) + update * B[t, n]
                        state[row, d, n] = h
                        total += h * C[t, n]
                    y[t, d] = total + D[d] * x[t, d]
