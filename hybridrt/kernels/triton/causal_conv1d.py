"""causal_conv1d in Triton: runs of tokens for prefill, one pass over rows for decode."""

from typing import Literal, no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.triton.gates import sigmoid
from hybridrt.kernels.triton.launch import block_of, cdiv, kernel, num_processors, wait_for_earlier
from hybridrt.kernels.triton.states import if_so, pages_of, prefill_turns, tokens_of

_CHANNELS = 128  # of a decode row for a program: one for each of its threads
_CHANNELS_OF_MANY = 512  # where that leaves work for all: wider loads
_TOKENS, _OF_TOKENS = 8, 512  # of a prefill row, at once in registers, and channels of them


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
    out = torch.empty_like(x)
    channels, width = weight.shape
    strides = (*x.stride(), *weight.stride(), *conv_state.stride(), *out.stride())
    blocks = cdiv(channels, _CHANNELS)
    options = {"WIDTH": width, "HAS_BIAS": bias is not None, "SILU": activation is not None}
    if n := batch.num_decodes:
        has_many = n * channels >= 2 * _CHANNELS_OF_MANY * num_processors(x.device)
        block_c = _CHANNELS_OF_MANY if has_many else _CHANNELS
        _step[(n, cdiv(channels, block_c))](
            *(x, weight, bias, conv_state, pages, out),
            *strides,
            channels,
            **options,
            BLOCK_C=block_c,
        )
    rows = (pages, initial_pages, batch.has_initial_state, batch.cu_seqlens_q)
    # What a run needs of the tokens before it is all in its row's state, or all in x.
    at_once = max(_TOKENS, width - 1)
    block_c = min(_OF_TOKENS, block_of(channels))
    for first, count, longest in prefill_turns(batch):
        _convolve[(cdiv(longest, at_once), count, cdiv(channels, block_c))](
            *(x, weight, bias, conv_state),
            *rows,
            out,
            *strides,
            channels,
            first,
            **options,
            BLOCK_C=block_c,
            TOKENS=at_once,
        )
        # Apart, since the run at the start of a row may read the page that this writes.
        _leave[(count, blocks)](
            x,
            conv_state,
            *rows,
            *x.stride(),
            *conv_state.stride(),
            channels,
            first,
            WIDTH=width,
            BLOCK_C=_CHANNELS,
        )
    return out


@kernel
@no_type_check
def _step(
    x,  # [tokens, channels]
    weight,  # [channels, WIDTH]
    bias,  # [channels]
    conv_state,  # [pages, WIDTH - 1, channels]
    pages,  # [rows]
    out,  # [tokens, channels]
    x_token,
    x_channel,
    w_channel,
    w_tap,
    s_page,
    s_token,
    s_channel,
    out_token,
    out_channel,
    channels,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    fits = channel < channels
    page = tl.load(pages + row).to(tl.int64)
    held = channel < if_so(page >= 0, channels)
    state = conv_state + page * s_page + channel * s_channel
    total = tl.zeros([BLOCK_C], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=fits, other=0.0).to(tl.float32)
    # All are on their way before the first is waited for.
    inputs, taps = (), ()
    for k in tl.static_range(WIDTH):
        taps += (tl.load(weight + channel * w_channel + k * w_tap, mask=fits, other=0.0),)
        if k + 1 < WIDTH:
            old = tl.load(state + k * s_token, mask=held, other=0.0)
            inputs += (old.to(x.dtype.element_ty),)
    inputs += (tl.load(x + row * x_token + channel * x_channel, mask=fits, other=0.0),)
    for k in tl.static_range(WIDTH):
        total += taps[k].to(tl.float32) * inputs[k].to(tl.float32)
        if k > 0:
            kept = inputs[k].to(conv_state.dtype.element_ty)
            tl.store(state + (k - 1) * s_token, kept, mask=held)
    if SILU:
        total *= sigmoid(total)
    at = out + row * out_token + channel * out_channel
    tl.store(at, total.to(out.dtype.element_ty), mask=fits)


@kernel(do_not_specialize=["first_row"])
@no_type_check
def _convolve(
    x,  # [tokens, channels]
    weight,  # [channels, WIDTH]
    bias,  # [channels]
    conv_state,  # [pages, WIDTH - 1, channels]
    pages,  # [rows]
    initial_pages,  # [rows]
    has_initial_state,  # [rows]
    cu_seqlens,  # [rows + 1]
    out,  # [tokens, channels]
    x_token,
    x_channel,
    w_channel,
    w_tap,
    s_page,
    s_token,
    s_channel,
    out_token,
    out_channel,
    channels,
    first_row,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_C: tl.constexpr,
    TOKENS: tl.constexpr,
):
    wait_for_earlier()
    row = (first_row + tl.program_id(1)).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    first = start + tl.program_id(0) * TOKENS
    if first >= stop:
        return
    initial, _ = pages_of(row, pages, initial_pages, has_initial_state, False)
    channel = tl.program_id(2).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    fits = channel < channels
    taps = ()
    for k in tl.static_range(WIDTH):
        tap = tl.load(weight + channel * w_channel + k * w_tap, mask=fits, other=0.0)
        taps += (tap.to(tl.float32),)
    shift = tl.zeros([BLOCK_C], tl.float32)
    if HAS_BIAS:
        shift += tl.load(bias + channel, mask=fits, other=0.0).to(tl.float32)
    # All inputs are on their way before the first is waited for, and each is read once.
    window = ()
    is_first = first == start
    before = channel < if_so(first > start, channels)
    held = channel < if_so(is_first & (initial >= 0), channels)
    for k in tl.static_range(WIDTH - 1):
        at = x + (first - (WIDTH - 1 - k)) * x_token + channel * x_channel
        new = tl.load(at, mask=before, other=0.0)
        at = conv_state + initial * s_page + k * s_token + channel * s_channel
        old = tl.load(at, mask=held, other=0.0)
        window += (tl.where(is_first, old.to(new.dtype), new),)
    for i in tl.static_range(TOKENS):
        at = x + (first + i) * x_token + channel * x_channel
        live = channel < if_so(first + i < stop, channels)
        window += (tl.load(at, mask=live, other=0.0),)
    for i in tl.static_range(TOKENS):
        total = shift
        for k in tl.static_range(WIDTH):
            total += taps[k] * window[i + k].to(tl.float32)
        if SILU:
            total *= sigmoid(total)
        at = out + (first + i) * out_token + channel * out_channel
        live = channel < if_so(first + i < stop, channels)
        tl.store(at, total.to(out.dtype.element_ty), mask=live)


@kernel(do_not_specialize=["first_row"])
@no_type_check
def _leave(
    x,  # [tokens, channels]
    conv_state,  # [pages, WIDTH - 1, channels]
    pages,  # [rows]
    initial_pages,  # [rows]
    has_initial_state,  # [rows]
    cu_seqlens,  # [rows + 1]
    x_token,
    x_channel,
    s_page,
    s_token,
    s_channel,
    channels,
    first_row,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    wait_for_earlier()
    row = (first_row + tl.program_id(0)).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, False)
    initial, page = pages_of(row, pages, initial_pages, has_initial_state, False)
    channel = tl.program_id(1).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    held = channel < if_so(page >= 0, channels)
    # From the oldest on, so that a page may be its own source: each thread has its channels.
    for k in tl.static_range(WIDTH - 1):
        source = stop - (WIDTH - 1 - k)
        is_new = source >= start
        at = x + source * x_token + channel * x_channel
        new = tl.load(at, mask=held & (channel < if_so(is_new, channels)), other=0.0)
        at = conv_state + initial * s_page + (source - start + WIDTH - 1) * s_token
        is_old = channel < if_so((source < start) & (initial >= 0), channels)
        old = tl.load(at + channel * s_channel, mask=held & is_old, other=0.0)
        kept = tl.where(is_new, new.to(old.dtype), old)
        tl.store(conv_state + page * s_page + k * s_token + channel * s_channel, kept, mask=held)
