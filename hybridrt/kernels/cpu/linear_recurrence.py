"""linear_recurrence in numba: one pass over the tokens, some channels at a time.

Each token's states are read again as the next one's, from the nearest cache.
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.flat import clear_padding, flat_rows, row_starts
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.vector_math import fma, splat
from hybridrt.kernels.cpu.vectors import LANES, load, load_some, pointer, store, store_some
from hybridrt.kernels.reference import linear_recurrence as reference

CHANNELS = 256  # a thread's share: few enough for all threads to get some


def linear_recurrence(
    update: Float32[Tensor, "tokens channels"],
    decay: Float32[Tensor, "tokens channels"],
    state: Float[Tensor, "pages channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float32[Tensor, "tokens channels"]:
    """See `hybridrt.kernels.linear_recurrence`."""
    if state.dtype != torch.float32:  # numba has no bfloat16
        return reference.linear_recurrence(update, decay, state, pages, initial_pages, batch)
    h = torch.empty(update.shape)
    starts = row_starts(state, pages, initial_pages)
    rows = (batch.cu_seqlens_q, batch.has_initial_state)
    of_rows = [*(part.numpy() for part in rows), *starts]
    inputs = (update.contiguous().numpy(), decay.contiguous().numpy())
    _scan(*inputs, *of_rows, flat_rows(state), h.numpy())  # pyright: ignore[reportCallIssue]
    clear_padding(h, len(pages), starts[1])
    return h


@inner
@no_type_check
def _run(update, decay, states, h, source, target, channels, begin, end, first, size):
    # pragma: no cover  (compiled, as below)
    """A row's tokens and up to `CHANNELS` channels. A negative `source` is a state of zeros."""
    update, decay, h, states = pointer(update), pointer(decay), pointer(h), pointer(states)
    for d in range(0, size, LANES):
        count = min(LANES, size - d)
        before = splat(np.float32(0))
        if source >= 0:
            before = load_some(states, source + first + d, count)
        store_some(before, states, target + first + d, count)
    for t in range(begin, end):
        at, before = t * channels + first, h
        place = at - channels
        if t == begin:
            before, place = states, target + first
        for d in range(0, size, LANES):
            if d + LANES <= size:
                kept = load(before, place + d)
                new = fma(load(decay, at + d), kept, load(update, at + d))
                store(new, h, at + d)
            else:
                count = size - d
                kept = load_some(before, place + d, count)
                new = load_some(update, at + d, count)
                new = fma(load_some(decay, at + d, count), kept, new)
                store_some(new, h, at + d, count)
    place = (end - 1) * channels + first
    for d in range(0, size, LANES):
        count = min(LANES, size - d)
        store_some(load_some(h, place + d, count), states, target + first + d, count)


@numba.njit(parallel=True, cache=True)
@no_type_check
def _scan(update, decay, cu_seqlens, has_initial, sources, targets, states, h):  # pragma: no cover
    channels = update.shape[1]
    for block in numba.prange((channels + CHANNELS - 1) // CHANNELS):
        first = np.int64(block) * CHANNELS
        size = min(CHANNELS, channels - first)
        for row in range(len(targets)):
            source = sources[row] if has_initial[row] else -1
            begin, end = np.int64(cu_seqlens[row]), np.int64(cu_seqlens[row + 1])
            _run(update, decay, states, h, source, targets[row], channels, begin, end, first, size)
