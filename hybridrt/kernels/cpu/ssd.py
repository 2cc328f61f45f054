"""ssd with its decode step in numba: a state is read once and written once, in its page."""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.cpu.flat import flat_pages
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
    batch: ForwardBatch,
    chunk_size: int,
) -> Float[Tensor, "tokens heads head_dim"]:
    """See `hybridrt.kernels.ssd`. Prefill is the reference's, whose matrix products are fast."""
    n = batch.num_decodes
    if n == 0 or ssm_state.dtype != torch.float32:  # numba has no bfloat16
        return reference.ssd(x, dt, A, B, C, D, ssm_state, pages, batch, chunk_size)
    y = torch.empty_like(x)
    y[:n] = _decode(x[:n], dt[:n], A, B[:n], C[:n], D, ssm_state, pages[:n])
    if n < len(batch.query_lens):
        args = (A.float(), B.float(), C.float(), D.float(), ssm_state, pages)
        reference.prefill(y, x, dt, *args, batch, chunk_size)
    return y


def _decode(
    x: Float[Tensor, "rows heads head_dim"],
    dt: Float[Tensor, "rows heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "rows groups state_size"],
    C: Float[Tensor, "rows groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    pages: Int64[Tensor, " rows"],
) -> Float[Tensor, "rows heads head_dim"]:
    decay = torch.exp(dt * A)
    y = torch.empty(x.shape, dtype=torch.float32)
    inputs = [part.float().contiguous().numpy() for part in (x, dt, decay, B, C, D)]
    flat, offsets = flat_pages(ssm_state, pages)
    _step(*inputs, flat, offsets, y.numpy())  # pyright: ignore[reportCallIssue]
    return y


@numba.njit(parallel=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, cache=True)
@no_type_check
def _step(x, dt, decay, B, C, D, state, offsets, y):  # pragma: no cover  (compiled)
    rows, heads, head_dim = x.shape
    groups, state_size = B.shape[1:]
    for i in numba.prange(rows * heads):
        row, head = i // heads, i % heads
        group = head // (heads // groups)
        b, c = B[row, group], C[row, group]
        for p in range(head_dim):
            start = offsets[row] + (head * head_dim + p) * state_size
            h = state[start : start + state_size]
            update = dt[row, head] * x[row, head, p]
            total = np.float32(0)
            for n in range(state_size):
                new = h[n] * decay[row, head] + update * b[n]
                h[n] = new
                total += new * c[n]
            y[row, head, p] = total + D[head] * x[row, head, p]
