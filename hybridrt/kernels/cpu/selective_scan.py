"""selective_scan in numba: each thread runs its channels through time, the state in cache."""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.fast_exp import fast_exp
from hybridrt.kernels.cpu.flat import flat_rows, row_starts
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
    rows = (batch.cu_seqlens_q, batch.has_initial_state, batch.follows)
    cu_seqlens, has_initial, follows = (part.numpy() for part in rows)
    out = y.numpy()
    if ssm_state.dtype == torch.float32:
        of_rows = (cu_seqlens, has_initial, follows)
        starts = row_starts(ssm_state, pages, initial_pages)
        _scan(*inputs, *of_rows, *starts, flat_rows(ssm_state), out)  # pyright: ignore[reportCallIssue]
        return y.to(x.dtype)
    for run in batch.turns:  # rounded where a row ends
        state = load_states(ssm_state, initial_pages, batch, run, torch.float32)
        places = np.arange(len(state)) * state[0].numel()
        given = np.ones(len(state), np.bool_)
        of_rows = (cu_seqlens[run.start : run.stop + 1], given, ~given, places, places)
        _scan(*inputs, *of_rows, flat_rows(state), out)  # pyright: ignore[reportCallIssue]
        store_states(ssm_state, pages[run], state)
    return y.to(x.dtype)


def _array(part: Tensor) -> np.ndarray:
    return part.float().contiguous().numpy()


@numba.njit(parallel=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, cache=True)
@no_type_check
def _scan(  # pragma: no cover
    x, dt, A, B, C, D, cu_seqlens, has_initial, follows, sources, targets, states, y
):
    channels, state_size = A.shape
    for block in numba.prange((channels + CHANNELS - 1) // CHANNELS):
        first = block * CHANNELS
        last = min(first + CHANNELS, channels)
        place, size = first * state_size, (last - first) * state_size
        h = np.empty((last - first, state_size), np.float32)
        kept = h.reshape(size)
        for row in range(len(targets)):
            if not has_initial[row]:
                kept[:] = 0
            elif not follows[row]:
                kept[:] = states[sources[row] + place : sources[row] + place + size]
            for t in range(cu_seqlens[row], cu_seqlens[row + 1]):
                for d in range(first, last):
                    step = dt[t, d]
                    update = step * x[t, d]
                    total = np.float32(0)
                    for n in range(state_size):
                        new = h[d - first, n] * fast_exp(step * A[d, n]) + update * B[t, n]
                        h[d - first, n] = new
                        total += new * C[t, n]
                    y[t, d] = total + D[d] * x[t, d]
            states[targets[row] + place : targets[row] + place + size] = kept
