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
from hybridrt.kernels.cpu.bfloat16 import singles
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.share import share_each, sharing_kernel
from hybridrt.kernels.cpu.state_rows import (
    StateRows,
    clear_padding,
    has_initial,
    live,
    sources,
    starts,
    targets,
)
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
    h = torch.empty(update.shape, dtype=torch.float32)
    update, decay = update.float().contiguous(), decay.float().contiguous()
    rows = StateRows.of(batch, state, pages, initial_pages)
    _scan(
        *(update.data_ptr(), decay.data_ptr(), rows, state.data_ptr(), h.data_ptr()),
        *(*update.shape, numba.get_num_threads()),
    )
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


@inner
@no_type_check
def _block(block, update, decay, rows, state, h, tokens, channels):  # pragma: no cover
    """All tokens of a block of channels."""
    first = block * CHANNELS
    size = min(CHANNELS, channels - first)
    states, into = singles(state, 1), singles(h, tokens * channels)
    updates, decays = singles(update, tokens * channels), singles(decay, tokens * channels)
    for row in range(live(rows)):
        source = sources(rows)[row] * rows.stride if has_initial(rows)[row] else -1
        target = targets(rows)[row] * rows.stride
        begin, end = np.int64(starts(rows)[row]), np.int64(starts(rows)[row + 1])
        _run(updates, decays, states, into, source, target, channels, begin, end, first, size)


@sharing_kernel
@no_type_check
def _scan(update, decay, rows, state, h, tokens, channels, threads):  # pragma: no cover
    clear_padding(rows, h, 4 * channels)
    blocks = (channels + CHANNELS - 1) // CHANNELS
    share_each(_block, threads, blocks, (update, decay, rows, state, h, tokens, channels))
