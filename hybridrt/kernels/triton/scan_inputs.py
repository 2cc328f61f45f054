"""scan_inputs in Triton: one launch for the steps and, by its last programs, for A."""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.kernels.triton.launch import block_of, cdiv, kernel, wait_for_earlier
from hybridrt.kernels.triton.softplus import softplus

_ELEMENTS, _CHANNELS = 1024, 512  # of a program, and channels of a token among them at most


def scan_inputs(
    dt: Float[Tensor, "tokens channels"],
    dt_bias: Float[Tensor, " channels"] | None,
    A_log: Float32[Tensor, " channels *state_size"],
    limits: tuple[float, float],
) -> tuple[Float32[Tensor, "tokens channels"], Float32[Tensor, " channels *state_size"]]:
    """See `hybridrt.kernels.scan_inputs`."""
    tokens, channels = dt.shape
    steps = torch.empty(dt.shape, dtype=torch.float32, device=dt.device)
    A_log = A_log.contiguous()
    A = torch.empty_like(A_log)
    block_c = min(_CHANNELS, block_of(channels))
    block_t = _ELEMENTS // block_c
    blocks = cdiv(channels, block_c)
    of_steps = cdiv(tokens, block_t) * blocks
    programs = of_steps + cdiv(A.numel(), _ELEMENTS)
    if programs:
        _make[(programs,)](
            dt,
            dt_bias,
            A_log,
            steps,
            A,
            *dt.stride(),
            0 if dt_bias is None else dt_bias.stride(0),
            tokens,
            channels,
            A.numel(),
            *limits,
            of_steps,
            blocks,
            BLOCK_T=block_t,
            BLOCK_C=block_c,
        )
    return steps, A


@kernel(do_not_specialize=["tokens", "of_steps", "blocks"])
@no_type_check
def _make(
    dt,  # [tokens, channels]
    dt_bias,  # [channels]; None: there is none
    A_log,  # [count]
    steps,  # [tokens, channels] without gaps
    A,  # [count]
    dt_token,
    dt_channel,
    bias_channel,
    tokens,
    channels,
    count,
    lowest,
    highest,
    of_steps,
    blocks,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    wait_for_earlier()
    program = tl.program_id(0)
    if program >= of_steps:
        place = (program - of_steps) * (BLOCK_T * BLOCK_C) + tl.arange(0, BLOCK_T * BLOCK_C)
        rate = tl.exp(tl.load(A_log + place, mask=place < count, other=0.0))
        tl.store(A + place, -rate, mask=place < count)
        return
    token = (program // blocks).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    channel = (program % blocks).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    fits_c = channel < channels
    fits = (token < tokens)[:, None] & fits_c[None, :]
    at = dt + (token * dt_token)[:, None] + (channel * dt_channel)[None, :]
    step = tl.load(at, mask=fits, other=0.0).to(tl.float32)
    if dt_bias is not None:
        bias = tl.load(dt_bias + channel * bias_channel, mask=fits_c, other=0.0)
        step += bias.to(tl.float32)[None, :]
    step = tl.maximum(softplus(step), lowest, propagate_nan=tl.PropagateNan.ALL)
    step = tl.minimum(step, highest, propagate_nan=tl.PropagateNan.ALL)
    tl.store(steps + (token * channels)[:, None] + channel[None, :], step, mask=fits)
