"""What is done to each number alone in Triton, gates above all: a part of a row by each program."""

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.triton import gates
from hybridrt.kernels.triton.launch import block_of, cdiv, kernel, wait_for_earlier

_MOST_ELEMENTS = 1024  # that a program writes
_FOR_A_WARP = 256  # 16 bytes for each of its threads

_BY_TURNS = {"clamped": "clamped", "silu by turns": "silu", "bent by turns": "bent"}
_IN_HALVES = {"clamped halves": "clamped"}


def gated(
    gate_up: Float[Tensor, "*batch twice_inner"], gating: Gating, alpha: float, limit: float
) -> Float[Tensor, "*batch inner"]:
    """See `hybridrt.kernels.gated`."""
    *batch, twice = gate_up.shape
    out = torch.empty((*batch, twice // 2), dtype=gate_up.dtype, device=gate_up.device)
    rows = _rows(gate_up)
    if gating in _BY_TURNS:
        parts, kind = (rows[:, 0::2], rows[:, 1::2]), _BY_TURNS[gating]
    else:
        parts, kind = rows.chunk(2, dim=-1), _IN_HALVES.get(gating, gating)
    _launch(parts, out, kind, alpha, limit)
    return out


def gated_by(
    values: Float[Tensor, "tokens size"], gate: Float[Tensor, "tokens size"]
) -> Float[Tensor, "tokens size"]:
    """See `hybridrt.kernels.gated`."""
    dtype = torch.result_type(values, gate)
    out = torch.empty(values.shape, dtype=dtype, device=values.device)
    _launch((gate, values), out, "silu")
    return out


def sigmoid_gated(
    values: Float[Tensor, "*batch size"], gate: Float[Tensor, "*batch size_or_one"]
) -> Float[Tensor, "*batch size"]:
    """See `hybridrt.kernels.gated`."""
    dtype = torch.result_type(values, gate)
    out = torch.empty(values.shape, dtype=dtype, device=values.device)
    _launch((_rows(gate.expand(values.shape)), _rows(values)), out, "sigmoid")
    return out


def add_gated(
    values: Float[Tensor, "tokens size"],
    more: Float[Tensor, "tokens size"],
    gate: Float[Tensor, "tokens one"],
) -> Float[Tensor, "tokens size"]:
    """See `hybridrt.kernels.gated`."""
    dtype = torch.promote_types(torch.result_type(values, more), gate.dtype)
    out = torch.empty(values.shape, dtype=dtype, device=values.device)
    _launch((gate, more, values), out, "add")
    return out


def add(
    x: Float[Tensor, "*batch size"], y: Float[Tensor, "*batch size"], scale: float = 1.0
) -> Float[Tensor, "*batch size"]:
    """See `hybridrt.kernels.add`."""
    out = torch.empty(x.shape, dtype=torch.result_type(x, y), device=x.device)
    _launch((_rows(x), _rows(y)), out, "sum", alpha=scale)
    return out


def relu2(x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
    """See `hybridrt.kernels.relu2`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch((_rows(x),), out, "relu2")
    return out


def _rows(x: Float[Tensor, "*batch size"]) -> Float[Tensor, "rows size"]:
    """The same numbers, copied only where more than one axis of rows has gaps."""
    return x[None] if x.dim() == 1 else x.flatten(0, -2)


def _launch(
    parts: Sequence[Float[Tensor, "rows size"]],
    out: Float[Tensor, "*batch size"],
    kind: str,
    alpha: float = 1.0,
    limit: float = 1.0,
) -> None:
    if out.numel() == 0:
        return
    rows, size = parts[-1].shape
    block = min(block_of(size), _MOST_ELEMENTS)
    a, b, c = (*parts, None, None)[:3]
    _gate[(rows, cdiv(size, block))](
        a,
        b,
        c,
        out,
        *_strides(a),
        *_strides(b),
        *_strides(c),
        size,
        alpha,
        limit,
        KIND=kind,
        BLOCK=block,
        num_warps=max(1, block // _FOR_A_WARP),
    )


def _strides(part: Float[Tensor, "rows size"] | None) -> tuple[int, ...]:
    return (0, 0) if part is None else part.stride()


@kernel
@no_type_check
def _gate(
    gate,  # [rows, size], as all of them; to add, [rows, 1]
    up,  # None: there is a gate alone
    values,  # what is added to; None: nothing is
    out,  # without gaps
    gate_row,
    gate_element,
    up_row,
    up_element,
    value_row,
    value_element,
    size,
    alpha,
    limit,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    element = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    live = element < size
    if KIND == "add":
        a = tl.load(gate + row * gate_row).to(tl.float32)
    else:
        a = tl.load(gate + row * gate_row + element * gate_element, mask=live, other=0.0)
        a = a.to(tl.float32)
    if up is not None:
        b = tl.load(up + row * up_row + element * up_element, mask=live, other=0.0).to(tl.float32)
    if KIND == "relu2":
        # Not the larger of it and 0, which would hide what is no number.
        result = tl.where(a < 0, 0.0, a * a)
    elif KIND == "sum":
        result = a + (b * alpha).to(up.dtype.element_ty).to(tl.float32)
    elif KIND == "sigmoid":
        result = gates.sigmoid(a) * b
    elif KIND == "add":
        c = tl.load(values + row * value_row + element * value_element, mask=live, other=0.0)
        result = c.to(tl.float32) + gates.sigmoid(a) * b
    else:
        result = gates.gated(a, b, alpha, limit, KIND)
    tl.store(out + row * size + element, result.to(out.dtype.element_ty), mask=live)
