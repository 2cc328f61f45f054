"""causal_conv1d in numba: one pass over the tokens of all rows, with the activation."""

from typing import Any, Literal, NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.bfloat16 import DTYPES, as_float, copy_bytes, elements, octets, of_dtype
from hybridrt.kernels.cpu.gated import times_sigmoid
from hybridrt.kernels.cpu.jit import argument, inline, inner
from hybridrt.kernels.cpu.share import parallel_kernel, share_each, threads_for
from hybridrt.kernels.cpu.state_rows import (
    StateRows,
    clear_padding,
    has_initial,
    live,
    sources,
    starts,
    targets,
)
from hybridrt.kernels.cpu.vector_math import fma, mul
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
AHEAD = 2  # tokens, from beginning to read one to using it: a CPU doesn't see what is so far apart
LINE = 64  # numbers, of which shares of channels have whole runs: lines of memory in any dtype
FOUR = 4  # tokens at once, of as many taps, which nearly every model has
SEEN = 2 * FOUR - 1  # inputs of theirs
CHANNELS = 2048  # a thread's share at most: what a token needs of it stays near


@argument
class Inputs(NamedTuple):
    """Addresses of x and what is multiplied, 0 if nothing is, and numbers from token to token."""

    x: int
    x_stride: int
    before: int
    before_stride: int
    after: int
    after_stride: int


def causal_conv1d(
    x: Float[Tensor, "tokens channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None,
    conv_state: Float[Tensor, "pages history channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    activation: Literal["silu"] | None = "silu",
    before: Float[Tensor, "tokens channels"] | None = None,
    after: Float[Tensor, "tokens channels"] | None = None,
) -> Float[Tensor, "tokens channels"]:
    """See `hybridrt.kernels.causal_conv1d`."""
    own = all(part is None or part.dtype == x.dtype for part in (before, after, conv_state))
    if not own or x.dtype not in DTYPES:
        x = x if before is None else before * x
        args = (x, weight, bias, conv_state, pages, initial_pages, batch, activation)
        y = reference.causal_conv1d(*args)
        return y if after is None else after * y
    x, before, after = (_whole(part) for part in (x, before, after))
    given = Inputs(*_place(x), *_place(before), *_place(after))
    out = torch.empty(x.shape, dtype=x.dtype)
    weight = weight.to(x.dtype).contiguous()
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    _convolve_all(
        *(of_dtype(x), given, weight.data_ptr(), 0 if bias is None else bias.data_ptr()),
        *(StateRows.of(batch, conv_state, pages, initial_pages), conv_state.data_ptr()),
        *(activation is not None, out.data_ptr(), *weight.shape, threads_for(x.numel(), SMALL)),
    )
    return out


def _whole(part: Any) -> Any:
    """The same, each token's channels one behind the other."""
    return part if part is None or part.stride(1) == 1 else part.contiguous()


def _place(part: Float[Tensor, "tokens channels"] | None) -> tuple[int, int]:
    """Its address and the numbers from a token to the next; what isn't there has none."""
    return (0, 0) if part is None else (part.data_ptr(), part.stride(0))


@inner
@no_type_check
def _convolve_token(like, places, taps, shift, size, silu, result, then):
    # pragma: no cover  (compiled, as all below)
    """One token of a share of the channels; `places` of what each tap sees are 0 where nothing.

    `then` is the address of inputs that it begins to read.
    """
    of_taps, begins, out = pointer(taps), pointer(shift), pointer(result)
    coming = pointer(elements(then, size, like))
    for c in range(0, size, LANES):
        count, total = min(LANES, size - c), load(begins, c)
        for k in range(len(places)):
            if places[k] != 0:
                seen = load_up_to(pointer(elements(places[k], size, like)), c, count)
                total = fma(load(of_taps, k * CHANNELS + c), seen, total)
        if silu:
            total = times_sigmoid(total, total)
        store_up_to(total, out, c, count)
        prefetch(coming, c)


@inline
@no_type_check
def _four_taps(taps, c):  # pragma: no cover
    """What a vector of channels, from `c` on, has of each."""
    return (
        load(taps, c), load(taps, CHANNELS + c), load(taps, 2 * CHANNELS + c),
        load(taps, 3 * CHANNELS + c)
    )  # fmt: skip


@inline
@no_type_check
def _result(taps, shift, inputs, silu):  # pragma: no cover
    """Of one token, from its inputs of all taps; summed as in `_convolve_token`."""
    total = fma(taps[0], inputs[0], shift)
    total = fma(taps[2], inputs[2], fma(taps[1], inputs[1], total))
    total = fma(taps[3], inputs[3], total)
    return times_sigmoid(total, total) if silu else total


@inner
@no_type_check
def _convolve_last(
    like, places, taps, shift, size, silu, result, then, states, stride
):  # fmt: skip  # pragma: no cover
    """A row's last token, of `FOUR` taps which all see something; else as `_convolve_token` does.

    It begins to read the next row's state, too, at `states`, inputs `stride` numbers apart.
    """
    of_taps, begins, out = pointer(taps), pointer(shift), pointer(result)
    first = pointer(elements(places[0], size, like))
    second = pointer(elements(places[1], size, like))
    third = pointer(elements(places[2], size, like))
    own = pointer(elements(places[3], size, like))
    coming, of_next = pointer(elements(then, size, like)), pointer(elements(states, size, like))
    for c in range(0, size, LANES):
        count, begin, of_each = min(LANES, size - c), load(begins, c), _four_taps(of_taps, c)
        a, b = load_up_to(first, c, count), load_up_to(second, c, count)
        seen = a, b, load_up_to(third, c, count), load_up_to(own, c, count)
        store_up_to(_result(of_each, begin, seen, silu), out, c, count)
        prefetch(coming, c)
        for k in range(FOUR - 1):
            prefetch(of_next, k * stride + c)


@inner
@no_type_check
def _convolve_four(
    like, first, stride, taps, shift, size, silu, result, result_stride
):  # fmt: skip  # pragma: no cover
    """`FOUR` tokens of a share of the channels, of as many taps: an input is widened once for all.

    `first` is the address of the oldest input that they see, from which on tokens are `stride`
    numbers apart. Meanwhile it begins to read the next ones.
    """
    x, out = pointer(elements(first, size, like)), pointer(elements(result, size, like))
    of_taps, begins = pointer(taps), pointer(shift)
    for i in range(0, size, LANES):
        count, begin, of_each = min(LANES, size - i), load(begins, i), _four_taps(of_taps, i)
        a, b = load_up_to(x, i, count), load_up_to(x, i + stride, count)
        c, d = load_up_to(x, i + 2 * stride, count), load_up_to(x, i + 3 * stride, count)
        e, f = load_up_to(x, i + 4 * stride, count), load_up_to(x, i + 5 * stride, count)
        g, to = load_up_to(x, i + 6 * stride, count), i + result_stride
        store_up_to(_result(of_each, begin, (a, b, c, d), silu), out, i, count)
        store_up_to(_result(of_each, begin, (b, c, d, e), silu), out, to, count)
        to += result_stride
        store_up_to(_result(of_each, begin, (c, d, e, f), silu), out, to, count)
        to += result_stride
        store_up_to(_result(of_each, begin, (d, e, f, g), silu), out, to, count)
        for token in range(FOUR):
            prefetch(x, i + (SEEN + token) * stride)


@inner
@no_type_check
def _times(like, one, other, size, product, ahead):  # pragma: no cover
    """Writes products of two addresses' numbers to a third one, which may be one of them.

    It begins to read what lies so many bytes ahead of the first.
    """
    of_one, of_other = pointer(elements(one, size, like)), pointer(elements(other, size, like))
    out, coming = pointer(elements(product, size, like)), pointer(elements(one + ahead, size, like))
    for c in range(0, size, LANES):
        count = min(LANES, size - c)
        gated = mul(load_up_to(of_one, c, count), load_up_to(of_other, c, count))
        store_up_to(gated, out, c, count)
        prefetch(coming, c)


@inner
@no_type_check
def _seen(back, own, step, last, earlier, history, channels, is_given, item):  # pragma: no cover
    """Where a token's inputs are, counted from the row's first one; 0 where there are none.

    `own` inputs are `step` bytes apart; if not 0, only the `last` so many are there, in turns.
    Those before the row's first stand in the state, if any.
    """
    if back >= 0:
        return own + step * (back % last if last > 0 else back)
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
    share, like, given, weight, bias, rows, states, silu, out, channels, width, size
):  # fmt: skip  # pragma: no cover
    """All rows' tokens, of a share of `size` channels."""
    first = share * size
    size = min(size, channels - first)
    history, item = width - 1, like.itemsize
    shift = np.zeros(CHANNELS, np.float32)
    if bias != 0:
        added = elements(bias + item * first, size, like)
        for c in range(size):
            shift[c] = as_float(added[c])
    taps = np.zeros((width, CHANNELS), np.float32)  # a tap's channels in a row
    _turn(elements(weight + item * first * width, size * width, like), size, width, taps)
    places, last = np.empty(width, np.int64), width if given.before != 0 else 0
    products = np.empty(item * last * size, np.uint8)  # of the last tokens, as far as taps reach
    num_rows, tokens, has_state = live(rows), starts(rows), has_initial(rows)
    source, target = sources(rows), targets(rows)
    for row in range(num_rows):
        begin, count, is_given = tokens[row], tokens[row + 1] - tokens[row], has_state[row] != 0
        x, x_step = given.x + item * (begin * given.x_stride + first), item * given.x_stride
        before_step, after_step = item * given.before_stride, item * given.after_stride
        before = given.before + begin * before_step + item * first
        after = given.after + begin * after_step + item * first
        own, step = (products.ctypes.data, item * size) if last > 0 else (x, x_step)
        earlier = states + item * (source[row] * rows.stride + first)
        left = states + item * (target[row] * rows.stride + first)
        by_four, t = width == FOUR and given.before == 0 == given.after, 0
        while t < count:
            at = out + item * ((begin + t) * channels + first)
            if by_four and t >= history and t + FOUR <= count:
                oldest = x + x_step * (t - history)
                _convolve_four(
                    like, oldest, given.x_stride, taps, shift, size, silu, at, channels
                )  # fmt: skip
                t += FOUR
                continue
            if last > 0:
                gate, gate_step = before + before_step * t, AHEAD * before_step
                _times(like, gate, x + x_step * t, size, own + step * (t % last), gate_step)
            for k in range(width):
                places[k] = _seen(
                    t + k - history, own, step, last, earlier, history, channels, is_given, item
                )  # fmt: skip
            then, result = x + x_step * (t + AHEAD), elements(at, size, like)
            if width == FOUR and places[0] != 0 and t + 1 == count:
                following = source[min(row + 1, num_rows - 1)] * rows.stride + first
                _convolve_last(
                    like, places, taps, shift, size, silu, result, then, states + item * following,
                    channels
                )  # fmt: skip
            else:
                _convolve_token(like, places, taps, shift, size, silu, result, then)
            if given.after != 0:
                _times(like, after + after_step * t, at, size, at, AHEAD * after_step)
            t += 1
        for k in range(history):  # from the oldest on, so that a page may be its own source
            place = _seen(
                count + k - history, own, step, last, earlier, history, channels, is_given, item
            )  # fmt: skip
            kept = left + item * k * channels
            if place != 0:
                copy_bytes(place, kept, item * size)
            else:
                octets(kept, item * size)[:] = 0


@parallel_kernel
@no_type_check
def _convolve_all(
    like, given, weight, bias, rows, states, silu, out, channels, width, threads
):  # fmt: skip  # pragma: no cover
    clear_padding(rows, out, like.itemsize * channels)
    # As long as can be, since a leap from what one token has of a share to the next takes time.
    shares = ((channels + CHANNELS - 1) // CHANNELS + threads - 1) // threads * threads
    size = (channels + shares * LINE - 1) // (shares * LINE) * LINE
    share_each(
        _convolve, threads, (channels + size - 1) // size,
        (like, given, weight, bias, rows, states, silu, out, channels, width, size)
    )  # fmt: skip
