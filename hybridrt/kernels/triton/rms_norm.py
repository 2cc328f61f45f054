"""rms_norm and add_rms_norm in Triton: each row by one program, which reads it once."""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.triton.launch import (
    block_of,
    kernel,
    row_strides,
    three_dims,
    wait_for_earlier,
)

_ELEMENTS = 256  # of a row for each warp, of which there are 16 at most


def rms_norm(
    x: Float[Tensor, "*rows size"], weight: Float[Tensor, " size"], eps: float, offset: float
) -> Float[Tensor, "*rows size"]:
    """See `hybridrt.kernels.rms_norm`."""
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    _launch(x, None, weight, None, out, eps, offset)
    return out


def add_rms_norm(
    x: Float[Tensor, "*rows size"],
    y: Float[Tensor, "*rows size"],
    weight: Float[Tensor, " size"],
    eps: float,
    offset: float,
) -> tuple[Float[Tensor, "*rows size"], Float[Tensor, "*rows size"]]:
    """See `hybridrt.kernels.rms_norm`."""
    total = torch.empty(x.shape, dtype=torch.result_type(x, y), device=x.device)
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    _launch(x, y, weight, total, out, eps, offset)
    return total, out


def _launch(
    x: Float[Tensor, "*rows size"],
    y: Float[Tensor, "*rows size"] | None,
    weight: Float[Tensor, " size"],
    total: Float[Tensor, "*rows size"] | None,
    out: Float[Tensor, "*rows size"],
    eps: float,
    offset: float,
) -> None:
    if out.numel() == 0:
        return
    x, y = three_dims(x), None if y is None else three_dims(y)
    outer, inner, size = x.shape
    block = block_of(size)
    _norm[(outer * inner,)](
        x,
        y,
        weight,
        total,
        out,
        *x.stride(),
        *row_strides(y, 3),
        weight.stride(0),
        inner,
        size,
        eps,
        offset,
        BLOCK=block,
        num_warps=min(16, max(1, block // _ELEMENTS)),
    )


@kernel
@no_type_check
def _norm(
    x,  # [outer, inner, size]
    y,  # the same; None: there is no sum
    weight,  # [size]
    total,  # [outer, inner, size] without gaps; None: there is no sum
    out,  # the same
    x_outer,
    x_inner,
    x_element,
    y_outer,
    y_inner,
    y_element,
    weight_stride,
    inner,
    size,
    eps,
    offset,
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    first, second = row // inner, row % inner
    element = tl.arange(0, BLOCK).to(tl.int64)
    fits = element < size
    x += first * x_outer + second * x_inner
    value = tl.load(x + element * x_element, mask=fits, other=0.0).to(tl.float32)
    if y is not None:
        y += first * y_outer + second * y_inner
        value += tl.load(y + element * y_element, mask=fits, other=0.0).to(tl.float32)
        # The norm is that of the sum as the stream has it.
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * size + element, rounded, mask=fits)
        value = rounded.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 0) / size + eps)
    factor = tl.load(weight + element * weight_stride, mask=fits, other=0.0).to(tl.float32) + offset
    normed = (value * scale * factor).to(out.dtype.element_ty)
    tl.store(out + row * size + element, normed, mask=fits)
