"""causal_conv1d in numba: one pass over the tokens of all rows, with the activation."""

from typing import Literal, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.bfloat16 import DTYPES, as_float, elements, octets, of_dtype
from hybridrt.kernels.cpu.gated import times_sigmoid
from hybridrt.kernels.cpu.jit import inner, kernel, parallel_kernel
from hybridrt.kernels.cpu.state_rows import (
    StateRows,
    clear_padding,
    has_initial,
    live,
    sources,
    starts,
    targets,
)
from hybridrt.kernels.cpu.vector_math import fma
from hybridrt.kernels.cpu.vectors import (
    LANES,
    load,
    load_up_to,
    pointer,
    prefetch,
    store_up_to,
)
from hybridrt.kernels.reference import causal_conv1d as reference

SMALL = 2**12  # elements: 10 us, not worth a second thread
AHEAD = 8  # tokens, from beginning to read one to using it: a CPU doesn't see what is so far apart
LINE = 64  # bytes that are read at a time
CHANNELS = 2048  # a thread's share at most: what a token needs of it stays near


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
        *(activation is not None, out.data_ptr(), *weight.shape, numba.get_num_threads()),
    )
    return out


@inner
@no_type_check
def _convolve_token(like, places, taps, shift, size, silu, result):
    # pragma: no cover  (compiled, as all below)
    """One token of a share of the channels; `places` of what each tap sees are 0 where nothing."""
    of_taps, begins, out = pointer(taps), pointer(shift), pointer(result)
    for c in range(0, size, LANES):
        count, total = min(LANES, size - c), load(begins, c)
        for k in range(len(places)):
            if places[k] != 0:
                seen = load_up_to(pointer(elements(places[k], size, like)), c, count)
                total = fma(load(of_taps, k * CHANNELS + c), seen, total)
        if silu:
            total = times_sigmoid(total, total)
        store_up_to(total, out, c, count)


@inner
@no_type_check
def _place(back, own, earlier, stride, history, channels, is_given, item):  # pragma: no cover
    """Of a token, counted from the row's first one: those before stand in the state, if any."""
    if back >= 0:
        return own + item * back * stride
    return earlier + item * (history + back) * channels if is_given else 0


@inner
@no_type_check
def _turn(given, size, width, taps):  # pragma: no cover
    """Writes `[size, width]` numbers as `[width, size]`; most often 4 wide, which has vectors."""
    if width == 4:
        for c in range(size):
            for k in range(4):
                taps[k, c] = as_float(given[4 * c + k])
    else:
        for c in range(size):
            for k in range(width):
                taps[k, c] = as_float(given[c * width + k])


@inner
@no_type_check
def _convolve(
    like, x, stride, weight, bias, rows, states, silu, out, channels, width, first, size
):  # fmt: skip  # pragma: no cover
    """All rows' tokens, of `size` channels from the `first` on."""
    history, item = width - 1, like.itemsize
    shift = np.zeros(CHANNELS, np.float32)
    if bias != 0:
        added = elements(bias + item * first, size, like)
        for c in range(size):
            shift[c] = as_float(added[c])
    taps = np.zeros((width, CHANNELS), np.float32)  # a tap's channels in a row
    _turn(elements(weight + item * first * width, size * width, like), size, width, taps)
    places = np.empty(width, np.int64)
    tokens, given_state = starts(rows), has_initial(rows)
    source, target = sources(rows), targets(rows)
    for row in range(live(rows)):
        begin, count, is_given = tokens[row], tokens[row + 1] - tokens[row], given_state[row] != 0
        own = x + item * (begin * stride + first)
        earlier = states + item * (source[row] * rows.stride + first)
        left = states + item * (target[row] * rows.stride + first)
        for t in range(count):
            for k in range(width):
                back = t + k - history
                places[k] = _place(back, own, earlier, stride, history, channels, is_given, item)
            if t + AHEAD < count:
                coming = pointer(elements(own + item * (t + AHEAD) * stride, size, like))
                for c in range(0, size, LINE // item):
                    prefetch(coming, c)
            result = elements(out + item * ((begin + t) * channels + first), size, like)
            _convolve_token(like, places, taps, shift, size, silu, result)
        for k in range(history):  # from the oldest on, so that a page may be its own source
            back = count + k - history
            place = _place(back, own, earlier, stride, history, channels, is_given, item)
            kept = octets(left + item * k * channels, item * size)
            if place != 0:
                seen = octets(place, item * size)
                for i in range(item * size):  # an assignment of arrays would take ten times as long
                    kept[i] = seen[i]
            else:
                kept[:] = 0


@kernel
@no_type_check
def _convolve_few(
    like, x, stride, weight, bias, rows, states, silu, out, channels, width, threads
):  # fmt: skip  # pragma: no cover
    clear_padding(rows, out, like.itemsize * channels)
    for first in range(0, channels, CHANNELS):
        _convolve(
            like, x, stride, weight, bias, rows, states, silu, out, channels, width, first,
            min(CHANNELS, channels - first)
        )  # fmt: skip


@parallel_kernel
@no_type_check
def _convolve_many(
    like, x, stride, weight, bias, rows, states, silu, out, channels, width, threads
):  # fmt: skip  # pragma: no cover
    clear_padding(rows, out, like.itemsize * channels)
    # As long as can be, since a leap from what one token has of a share to the next takes time.
    shares = ((channels + CHANNELS - 1) // CHANNELS + threads - 1) // threads * threads
    size = (channels + shares * LINE - 1) // (shares * LINE) * LINE
    for share in numba.prange((channels + size - 1) // size):
        _convolve(
            like, x, stride, weight, bias, rows, states, silu, out, channels, width,
            share * size, min(size, channels - share * size)
        )  # fmt: skip
