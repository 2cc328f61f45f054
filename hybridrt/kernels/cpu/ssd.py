"""ssd in numba: the recurrence itself, each row of a state kept in the nearest cache, in its page.

On a CPU this takes less time than the matrix form, whose larger products it doesn't have.
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.flat import flat_rows, row_starts
from hybridrt.kernels.reference import ssd as reference


def ssd(
    x: Float[Tensor, "tokens heads head_dim"],
    dt: Float[Tensor, "tokens heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    chunk_size: int,
) -> Float[Tensor, "tokens heads head_dim"]:
    """See `hybridrt.kernels.ssd`. `chunk_size` is of no use here."""
    if ssm_state.dtype != torch.float32:  # numba has no bfloat16
        return reference.ssd(x, dt, A, B, C, D, ssm_state, pages, initial_pages, batch, chunk_size)
    y = torch.empty(x.shape, dtype=torch.float32)
    inputs = [_array(part) for part in (x, dt, torch.exp(dt.float() * A), B, C, D)]
    rows = (batch.cu_seqlens_q, batch.has_initial_state, batch.follows)
    of_rows = [*(part.numpy() for part in rows), *row_starts(ssm_state, pages, initial_pages)]
    _scan(*inputs, *of_rows, flat_rows(ssm_state), y.numpy())  # pyright: ignore[reportCallIssue]
    return y.to(x.dtype)


def _array(part: Tensor) -> np.ndarray:
    return part.float().contiguous().numpy()


@numba.njit(parallel=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, cache=True)
@no_type_check
def _scan(  # pragma: no cover
    x, dt, decay, B, C, D, cu_seqlens, has_initial, follows, sources, targets, states, y
):
    heads, head_dim = x.shape[1:]
    groups, state_size = B.shape[1:]
    rows = len(targets)
    for i in numba.prange(rows * heads):
        first, head = i // heads, i % heads
        if follows[first]:
            continue
        last = first + 1
        while last < rows and follows[last]:
            last += 1
        group = head // (heads // groups)
        for p in range(head_dim):
            place = (head * head_dim + p) * state_size
            for row in range(first, last):
                h = states[targets[row] + place : targets[row] + place + state_size]
                if not has_initial[row]:
                    h[:] = 0
                elif sources[row] != targets[row]:
                    h[:] = states[sources[row] + place : sources[row] + place + state_size]
                for t in range(cu_seqlens[row], cu_seqlens[row + 1]):
                    kept = decay[t, head]
                    update = dt[t, head] * x[t, head, p]
                    total = np.float32(0)
                    for n in range(state_size):
                        new = h[n] * kept + update * B[t, group, n]
                        h[n] = new
                        total += new * C[t, group, n]
                    y[t, head, p] = total + D[head] * x[t, head, p]
