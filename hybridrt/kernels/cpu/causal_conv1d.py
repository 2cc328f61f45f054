"""causal_conv1d in numba: one pass over the tokens of all rows, with the activation."""

from typing import Literal, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.bfloat16 import DTYPES, as_element, as_float, elements, of_dtype
from hybridrt.kernels.cpu.gated import silu as silu_of
from hybridrt.kernels.cpu.jit import inner_fast, kernel, parallel_kernel
from hybridrt.kernels.cpu.state_rows import (
    StateRows,
    clear_padding,
    has_initial,
    live,
    sources,
    starts,
    targets,
)
from hybridrt.kernels.reference import causal_conv1d as reference

SMALL = 2**12  # elements: 10 us, not worth a second thread
CHANNELS = 256  # a thread's share: what a token needs of it stays in its L1 cache


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
    if x.dtype != conv_state.dtype or x.dtype not in DTYPES:
        args = (x, weight, bias, conv_state, pages, initial_pages, batch, activation)
        return reference.causal_conv1d(*args)
    if x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    weight = weight.to(x.dtype).contiguous()
    bias = None if bias is None else bias.to(x.dtype)
    run = _convolve_few if x.numel() <= SMALL else _convolve_many
    run(
        *(of_dtype(x), x.data_ptr(), x.stride(0), weight.data_ptr()),
        0 if bias is None else bias.data_ptr(),
        *(StateRows.of(batch, conv_state, pages, initial_pages), conv_state.data_ptr()),
        *(activation is not None, out.data_ptr(), *weight.shape),
    )
    return out


@inner_fast
@no_type_check
def _convolve(
    like, x, stride, weight, bias, rows, states, silu, out, channels, width, first
):  # fmt: skip  # pragma: no cover  (compiled, as all below)
    """All rows' tokens, of one share of the channels."""
    history, size, item = width - 1, min(CHANNELS, channels - first), like.itemsize
    total = np.empty(size, np.float32)
    shift = np.zeros(size, np.float32)
    if bias != 0:
        added = elements(bias + item * first, size, like)
        for c in range(size):
            shift[c] = as_float(added[c])
    given = elements(weight + item * first * width, size * width, like)
    taps = np.empty((width, size), np.float32)  # a tap's channels in a row
    for c in range(size):
        for k in range(width):
            taps[k, c] = as_float(given[c * width + k])
    tokens, given_state = starts(rows), has_initial(rows)
    source, target = sources(rows), targets(rows)
    for row in range(live(rows)):
        begin, end = tokens[row], tokens[row + 1]
        own = x + item * (begin * stride + first)
        earlier = states + item * (source[row] * rows.stride + first)
        left = states + item * (target[row] * rows.stride + first)
        for t in range(end - begin):
            for c in range(size):
                total[c] = shift[c]
            for k in range(width):
                back = t + k - history  # the tap's token; below 0 in the state
                if back >= 0:
                    seen = elements(own + item * back * stride, size, like)
                elif given_state[row]:
                    seen = elements(earlier + item * (history + back) * channels, size, like)
                else:
                    continue
                tap = taps[k]
                for c in range(size):
                    total[c] += tap[c] * as_float(seen[c])
            result = elements(out + item * ((begin + t) * channels + first), size, like)
            if silu:
                for c in range(size):
                    total[c] = silu_of(total[c])
            for c in range(size):
                result[c] = as_element(total[c], like)
        for k in range(history):  # from the oldest on, so that a page may be its own source
            back = end - begin + k - history
            kept = elements(left + item * k * channels, size, like)
            if back >= 0:
                seen = elements(own + item * back * stride, size, like)
            elif given_state[row]:
                seen = elements(earlier + item * (history + back) * channels, size, like)
            else:
                for c in range(size):
                    kept[c] = 0
                continue
            for c in range(size):
                kept[c] = seen[c]


@kernel
@no_type_check
def _convolve_few(
    like, x, stride, weight, bias, rows, states, silu, out, channels, width
):  # fmt: skip  # pragma: no cover
    clear_padding(rows, out, like.itemsize * channels)
    for first in range(0, channels, CHANNELS):
        _convolve(
            like, x, stride, weight, bias, rows, states, silu, out, channels, width, first
        )  # fmt: skip


@parallel_kernel
@no_type_check
def _convolve_many(
    like, x, stride, weight, bias, rows, states, silu, out, channels, width
):  # fmt: skip  # pragma: no cover
    clear_padding(rows, out, like.itemsize * channels)
    for share in numba.prange((channels + CHANNELS - 1) // CHANNELS):
        _convolve(
            like, x, stride, weight, bias, rows, states, silu, out, channels, width,
            share * CHANNELS
        )  # fmt: skip
