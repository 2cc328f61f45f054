"""selective_scan in Triton: a program runs its channels through time, their states in registers."""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.triton.launch import (
    LOG2_E,
    block_of,
    cdiv,
    jit,
    kernel,
    num_processors,
    wait_for_earlier,
)
from hybridrt.kernels.triton.states import if_so, pages_of, prefill_turns, tokens_of

_STATES, _WARPS = 512, 2  # of a program
# Of decodes, where that leaves work for all: more states are on their way at once.
_STATES_OF_DECODES, _WARPS_OF_DECODES = 2048, 4
_TOKENS_AT_ONCE = 8  # whose inputs are on their way together, while as many are computed


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
    y = torch.empty_like(x)
    channels, size = A.shape
    block_n = block_of(size, 1)
    inputs = (x, dt, A, B, C, D, ssm_state, y)
    strides = [stride for part in inputs for stride in part.stride()]

    def launch(first: int, count: int, tokens: int, is_decode: bool) -> None:
        has_many = count * channels * block_n >= 4 * _STATES_OF_DECODES * num_processors(x.device)
        states = _STATES_OF_DECODES if is_decode and has_many else _STATES
        block_c = max(1, states // block_n)
        grid = (count, cdiv(channels, block_c))
        (_scan[grid] if is_decode else _scan.in_turn(grid))(
            *inputs,
            pages,
            initial_pages,
            batch.has_initial_state,
            batch.cu_seqlens_q,
            *strides,
            channels,
            first,
            SIZE=size,
            IS_DECODE=is_decode,
            TOKENS=tokens,
            BLOCK_C=block_c,
            BLOCK_N=block_n,
            num_warps=_WARPS_OF_DECODES if is_decode else _WARPS,
        )

    if batch.num_decodes:
        launch(0, batch.num_decodes, 1, True)
    for first, count, _ in prefill_turns(batch):
        launch(first, count, _TOKENS_AT_ONCE, False)
    return y


@kernel(do_not_specialize=["first_row"])
@no_type_check
def _scan(
    x,  # [tokens, channels]
    dt,  # [tokens, channels]
    A,  # [channels, SIZE]
    B,  # [tokens, SIZE]
    C,  # [tokens, SIZE]
    D,  # [channels]
    ssm_state,  # [pages, channels, SIZE]
    y,  # [tokens, channels]
    pages,  # [rows]
    initial_pages,  # [rows]
    has_initial_state,  # [rows]
    cu_seqlens,  # [rows + 1]
    x_token,
    x_channel,
    dt_token,
    dt_channel,
    A_channel,
    A_n,
    B_token,
    B_n,
    C_token,
    C_n,
    D_channel,
    s_page,
    s_channel,
    s_n,
    y_token,
    y_channel,
    channels,
    first_row,
    SIZE: tl.constexpr,
    IS_DECODE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    wait_for_earlier()
    row = (first_row + tl.program_id(0)).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, IS_DECODE)
    initial, page = pages_of(row, pages, initial_pages, has_initial_state, IS_DECODE)
    in_row = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_state = tl.arange(0, BLOCK_N)
    fits, fits_n = in_row < channels, in_state < SIZE
    channel, n = in_row.to(tl.int64), in_state.to(tl.int64)
    both = fits[:, None] & fits_n[None, :]
    factors = A + (channel * A_channel)[:, None] + (n * A_n)[None, :]
    a = tl.load(factors, mask=both, other=0.0).to(tl.float32) * LOG2_E
    d = tl.load(D + channel * D_channel, mask=fits, other=0.0).to(tl.float32)
    in_page = (channel * s_channel)[:, None] + (n * s_n)[None, :]
    old = ssm_state + initial * s_page + in_page
    here = (in_row < if_so(initial >= 0, channels))[:, None] & fits_n[None, :]
    h = tl.load(old, mask=here, other=0.0).to(tl.float32)

    x += start * x_token + channel * x_channel
    dt += start * dt_token + channel * dt_channel
    B += start * B_token + n * B_n
    C += start * C_token + n * C_n
    place = tl.arange(0, TOKENS)
    y += start * y_token + (channel * y_channel)[:, None] + (place * y_token)[None, :]
    left = (stop - start).to(tl.int32)
    now, x, dt, B, C = _inputs(
        *(x, dt, B, C),
        *(x_token, dt_token, B_token, C_token),
        *(left, in_row, in_state, channels, SIZE, TOKENS),
    )
    for _ in range(0, stop - start, TOKENS):
        then, x, dt, B, C = _inputs(
            *(x, dt, B, C),
            *(x_token, dt_token, B_token, C_token),
            *(left - TOKENS, in_row, in_state, channels, SIZE, TOKENS),
        )
        # Stored together, as what a sum's threads have must be sorted between them for that.
        outs = tl.zeros([BLOCK_C, TOKENS], tl.float32)
        for i in tl.static_range(TOKENS):
            u, step = now[4 * i].to(tl.float32), now[4 * i + 1].to(tl.float32)
            b, c = now[4 * i + 2].to(tl.float32), now[4 * i + 3].to(tl.float32)
            h = tl.exp2(step[:, None] * a) * h + (step * u)[:, None] * b[None, :]
            out = tl.sum(h * c[None, :], 1) + d * u
            outs = tl.where((place == i)[None, :], out[:, None], outs)
        tl.store(y, outs.to(y.dtype.element_ty), mask=fits[:, None] & (place < left)[None, :])
        y += TOKENS * y_token
        left -= TOKENS
        now = then
    kept = h.to(ssm_state.dtype.element_ty)
    held = (in_row < if_so(page >= 0, channels))[:, None] & fits_n[None, :]
    tl.store(ssm_state + page * s_page + in_page, kept, mask=held)


@jit
@no_type_check
def _inputs(
    x,  # [BLOCK_C], of the first token
    dt,  # [BLOCK_C]
    B,  # [BLOCK_N]
    C,  # [BLOCK_N]
    x_token,
    dt_token,
    B_token,
    C_token,
    left,
    in_row,
    in_state,
    channels,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Some tokens' x, dt, B and C, one token's behind another's, and where the next one's are.

    Behind the last token dt and x are zeros, which leave a state as it is.
    """
    found = ()
    for i in tl.static_range(TOKENS):
        live, live_n = in_row < if_so(i < left, channels), in_state < if_so(i < left, SIZE)
        found += (
            tl.load(x, mask=live, other=0.0),
            tl.load(dt, mask=live, other=0.0),
            tl.load(B, mask=live_n, other=0.0),
            tl.load(C, mask=live_n, other=0.0),
        )
        x += x_token
        dt += dt_token
        B += B_token
        C += C_token
    return found, x, dt, B, C
