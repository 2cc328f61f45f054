"""gated_rms_norm in Triton: a group of a row is read once, small ones several by a program."""

from typing import Literal, no_type_check

import torch
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.triton.gates import sigmoid
from hybridrt.kernels.triton.launch import block_of, cdiv, kernel, three_dims, wait_for_earlier

_ELEMENTS, _OF_A_WARP = 1024, 256  # of a program at least, and of each of its 16 warps at most


def gated_rms_norm(
    x: Float[Tensor, "*rows size"],
    z: Float[Tensor, "*rows size"],
    weight: Float[Tensor, " size"],
    eps: float,
    num_groups: int,
    norm_before_gate: bool,
    gate: Literal["silu", "sigmoid"],
) -> Float[Tensor, "*rows size"]:
    """See `hybridrt.kernels.gated_rms_norm`."""
    out = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    if out.numel() == 0:
        return out
    x, z = three_dims(x), three_dims(z)
    size = z.shape[-1] // num_groups
    count = out.numel() // size
    block = block_of(size, 1)
    # As many for every number of rows, so that a row gives the same bits in any company.
    at_once = max(1, _ELEMENTS // block)
    _norm[(cdiv(count, at_once),)](
        x,
        z,
        weight,
        out,
        *x.stride(),
        *z.stride(),
        weight.stride(0),
        z.shape[1],
        count,
        eps,
        GROUPS=num_groups,
        SIZE=size,
        NORM_FIRST=norm_before_gate,
        SILU=gate == "silu",
        ROWS=at_once,
        BLOCK=block,
        num_warps=min(16, at_once * block // _OF_A_WARP),
    )
    return out


@kernel(do_not_specialize=["inner", "count"])
@no_type_check
def _norm(
    x,  # [outer, inner, GROUPS * SIZE]
    z,  # [outer, inner, GROUPS * SIZE]
    weight,  # [GROUPS * SIZE]
    out,  # [outer, inner, GROUPS, SIZE] without gaps
    x_outer,
    x_inner,
    x_element,
    z_outer,
    z_inner,
    z_element,
    weight_stride,
    inner,
    count,
    eps,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    NORM_FIRST: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    part = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = part // GROUPS
    first, second = (row // inner).to(tl.int64), (row % inner).to(tl.int64)
    element = tl.arange(0, BLOCK)
    fits = (part < count)[:, None] & (element < SIZE)[None, :]
    element = ((part % GROUPS) * SIZE).to(tl.int64)[:, None] + element[None, :]
    at = x + (first * x_outer + second * x_inner)[:, None] + element * x_element
    value = tl.load(at, mask=fits, other=0.0).to(tl.float32)
    at = z + (first * z_outer + second * z_inner)[:, None] + element * z_element
    gate = tl.load(at, mask=fits, other=0.0).to(tl.float32)
    if SILU:
        gate *= sigmoid(gate)
    else:
        gate = sigmoid(gate)
    if not NORM_FIRST:
        value *= gate
    value *= (1 / tl.sqrt(tl.sum(value * value, 1) / SIZE + eps))[:, None]
    if NORM_FIRST:
        value *= gate
    value *= tl.load(weight + element * weight_stride, mask=fits, other=0.0).to(tl.float32)
    at = out + (row * GROUPS).to(tl.int64)[:, None] * SIZE + element
    tl.store(at, value.to(out.dtype.element_ty), mask=fits)
