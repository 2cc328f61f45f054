"""rms_norm and add_rms_norm in Triton: each row by one program, which reads it once."""

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.triton.launch import (
    block_of,
    jit,
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
    scale: float = 1.0,
) -> tuple[Float[Tensor, "*rows size"], Float[Tensor, "*rows size"]]:
    """See `hybridrt.kernels.rms_norm`."""
    total = torch.empty(x.shape, dtype=torch.result_type(x, y), device=x.device)
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    _launch(x, y, weight, total, out, eps, offset, scale)
    return total, out


def rms_norm_three(
    parts: Sequence[Float[Tensor, "tokens _"]],
    weights: Sequence[Float[Tensor, " _"]],
    eps: float,
) -> tuple[Float[Tensor, "tokens _"], ...]:
    """`rms_norm` of three parts of the same tokens, each by its weight."""
    outs = tuple(
        torch.empty(part.shape, dtype=weight.dtype, device=part.device)
        for part, weight in zip(parts, weights, strict=True)
    )
    tokens, sizes = len(parts[0]), [part.shape[1] for part in parts]
    if tokens:
        block = block_of(max(sizes))
        _norm_three[(tokens, 3)](
            *parts,
            *weights,
            *outs,
            *(stride for part in parts for stride in part.stride()),
            *(weight.stride(0) for weight in weights),
            *sizes,
            eps,
            BLOCK=block,
            num_warps=min(16, max(1, block // _ELEMENTS)),
        )
    return outs


def _launch(
    x: Float[Tensor, "*rows size"],
    y: Float[Tensor, "*rows size"] | None,
    weight: Float[Tensor, " size"],
    total: Float[Tensor, "*rows size"] | None,
    out: Float[Tensor, "*rows size"],
    eps: float,
    offset: float,
    scale: float = 1.0,
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
        scale,
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
    factor,  # of y
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
        more = tl.load(y + element * y_element, mask=fits, other=0.0).to(tl.float32)
        value += (more * factor).to(y.dtype.element_ty).to(tl.float32)
        # The norm is that of the sum as the stream has it.
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * size + element, rounded, mask=fits)
        value = rounded.to(tl.float32)
    out += row * size
    store_normed(value, weight, weight_stride, out, element, fits, size, eps, offset)


@jit
@no_type_check
def store_normed(value, weight, weight_stride, out, element, fits, size, eps, offset):
    """A row in float32, zeros behind its end, by its weight and `offset`."""
    scale = 1 / tl.sqrt(tl.sum(value * value, 0) / size + eps)
    factor = tl.load(weight + element * weight_stride, mask=fits, other=0.0).to(tl.float32) + offset
    normed = (value * scale * factor).to(out.dtype.element_ty)
    tl.store(out + element, normed, mask=fits)


@kernel
@no_type_check
def _norm_three(
    x,  # [tokens, size]
    y,
    z,
    x_weight,  # [size]
    y_weight,
    z_weight,
    x_out,  # [tokens, size] without gaps
    y_out,
    z_out,
    x_token,
    x_element,
    y_token,
    y_element,
    z_token,
    z_element,
    x_weight_stride,
    y_weight_stride,
    z_weight_stride,
    x_size,
    y_size,
    z_size,
    eps,
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if part == 0:
        _norm_row(
            x, x_weight, x_out, x_token, x_element, x_weight_stride, x_size, token, eps, BLOCK
        )
    elif part == 1:
        _norm_row(
            y, y_weight, y_out, y_token, y_element, y_weight_stride, y_size, token, eps, BLOCK
        )
    else:
        _norm_row(
            z, z_weight, z_out, z_token, z_element, z_weight_stride, z_size, token, eps, BLOCK
        )


@jit
@no_type_check
def _norm_row(
    x, weight, out, x_token, x_element, weight_stride, size, token, eps, BLOCK: tl.constexpr
):
    element = tl.arange(0, BLOCK).to(tl.int64)
    fits = element < size
    at = x + token * x_token + element * x_element
    value = tl.load(at, mask=fits, other=0.0).to(tl.float32)
    out += token * size
    store_normed(value, weight, weight_stride, out, element, fits, size, eps, 0.0)
