"""selective_scan in Triton: a program runs its channels through time, their states in registers."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.triton.launch import block_of, jit
from hybridrt.kernels.triton.states import if_so, pages_of, prefill_turns, tokens_of

_STATES = 512  # of a program: 4 for each of its threads
_TOKENS_AT_ONCE = 8  # whose inputs are on their way together


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
    block_c = max(1, _STATES // block_n)
    inputs = (x, dt, A, B, C, D, ssm_state, y)
    strides = [stride for part in inputs for stride in part.stride()]

    def launch(first: int, count: int, tokens: int, is_decode: bool) -> None:
        _scan[(count, triton.cdiv(channels, block_c))](
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
        )

    if batch.num_decodes:
        launch(0, batch.num_decodes, 1, True)
    for first, count, _ in prefill_turns(batch):
        launch(first, count, _TOKENS_AT_ONCE, False)
    return y


@jit(do_not_specialize=["first_row"])
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
    row = (first_row + tl.program_id(0)).to(tl.int64)
    start, stop = tokens_of(row, cu_seqlens, IS_DECODE)
    initial, page = pages_of(row, pages, initial_pages, has_initial_state, IS_DECODE)
    channel = tl.program_id(1).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    n = tl.arange(0, BLOCK_N)
    fits, fits_n = channel < channels, n < SIZE
    n = n.to(tl.int64)
    both = fits[:, None] & fits_n[None, :]
    factors = A + (channel * A_channel)[:, None] + (n * A_n)[None, :]
    a = tl.load(factors, mask=both, other=0.0).to(tl.float32)
    d = tl.load(D + channel * D_channel, mask=fits, other=0.0).to(tl.float32)
    in_page = (channel * s_channel)[:, None] + (n * s_n)[None, :]
    old = ssm_state + initial * s_page + in_page
    here = (channel < if_so(initial >= 0, channels))[:, None] & fits_n[None, :]
    h = tl.load(old, mask=here, other=0.0).to(tl.float32)
    for first in range(start, stop, TOKENS):
        inputs = ()
        for i in tl.static_range(TOKENS):
            # Behind the last token dt and x are zeros, which leave a state as it is.
            t = first + i
            live = channel < if_so(t < stop, channels)
            live_n = n < if_so(t < stop, SIZE)
            inputs += (
                tl.load(x + t * x_token + channel * x_channel, mask=live, other=0.0),
                tl.load(dt + t * dt_token + channel * dt_channel, mask=live, other=0.0),
                tl.load(B + t * B_token + n * B_n, mask=live_n, other=0.0),
                tl.load(C + t * C_token + n * C_n, mask=live_n, other=0.0),
            )
        for i in tl.static_range(TOKENS):
            u, step = inputs[4 * i].to(tl.float32), inputs[4 * i + 1].to(tl.float32)
            b, c = inputs[4 * i + 2].to(tl.float32), inputs[4 * i + 3].to(tl.float32)
            h = tl.exp(step[:, None] * a) * h + (step * u)[:, None] * b[None, :]
            out = tl.sum(h * c[None, :], 1) + d * u
            at = y + (first + i) * y_token + channel * y_channel
            live = channel < if_so(first + i < stop, channels)
            tl.store(at, out.to(y.dtype.element_ty), mask=live)
    kept = h.to(ssm_state.dtype.element_ty)
    held = (channel < if_so(page >= 0, channels))[:, None] & fits_n[None, :]
    tl.store(ssm_state + page * s_page + in_page, kept, mask=held)
