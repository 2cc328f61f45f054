"""moe_experts for one token in Triton: its experts' weights by rows, each read once."""

from math import inf
from typing import Literal, no_type_check

import triton
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.triton.gates import gated, kind_of
from hybridrt.kernels.triton.launch import block_of, kernel, row_strides, wait_for_earlier

# Of a program, by 128 threads: rows of the gate and `up` each, of a matrix alone, and how many
# numbers of a row at a time.
_INNER, _HIDDEN, _INPUTS = 1, 2, 1024


def one_row_experts(
    x: Float[Tensor, "1 hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "1 top_k"],
    weights: Float[Tensor, "1 top_k"],
    gate_up_bias: Float[Tensor, "experts twice_inner"] | None = None,
    down_bias: Float[Tensor, "experts hidden"] | None = None,
    gating: Gating | Literal["relu2"] = "silu",
    alpha: float = 1.0,
    limit: float = inf,
) -> Float[Tensor, "1 hidden"]:
    """See `hybridrt.kernels.moe.stacked_moe_experts`, and `relu2_moe` for "relu2"; one token."""
    (_, hidden, inner), top_k = down.shape, expert_ids.shape[1]
    kind, by_turns = kind_of(gating)
    values = x.new_empty(top_k, inner)
    _to_inner[(triton.cdiv(inner, _INNER), top_k)](
        x,
        gate_up,
        gate_up_bias,
        values,
        expert_ids,
        x.stride(1),
        *gate_up.stride(),
        *row_strides(gate_up_bias, 2),
        expert_ids.stride(1),
        hidden,
        inner,
        alpha,
        limit,
        GATING=kind,
        BY_TURNS=by_turns,
        ROWS=_INNER,
        INPUTS=min(block_of(hidden), _INPUTS),
    )
    out = x.new_empty(1, hidden)
    _from_inner[(triton.cdiv(hidden, _HIDDEN),)](
        values,
        down,
        down_bias,
        out,
        expert_ids,
        weights,
        *down.stride(),
        *row_strides(down_bias, 2),
        expert_ids.stride(1),
        weights.stride(1),
        inner,
        hidden,
        TOP_K=top_k,
        ROWS=_HIDDEN,
        INPUTS=min(block_of(inner), _INPUTS),
    )
    return out


@kernel
@no_type_check
def _to_inner(
    x,  # [1, hidden]
    gate_up,  # [experts, 2 * inner, hidden]; of "relu2" [experts, inner, hidden]
    bias,  # [experts, 2 * inner]; None: there is none
    out,  # [top_k, inner], contiguous
    ids,  # [1, top_k]
    x_dim,
    w_expert,
    w_row,
    w_dim,
    b_expert,
    b_row,
    ids_choice,
    hidden,
    inner,
    alpha,
    limit,
    GATING: tl.constexpr,
    BY_TURNS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    wait_for_earlier()
    choice = tl.program_id(1).to(tl.int64)
    expert = tl.load(ids + choice * ids_choice)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    fits = row < inner
    if BY_TURNS:
        gate_row, up_row = 2 * row.to(tl.int64), 2 * row.to(tl.int64) + 1
    else:
        gate_row, up_row = row.to(tl.int64), inner + row.to(tl.int64)
    of_gate = gate_up + expert * w_expert + (gate_row * w_row)[:, None]
    of_up = gate_up + expert * w_expert + (up_row * w_row)[:, None]
    gates = tl.zeros([ROWS, INPUTS], tl.float32)
    ups = tl.zeros([ROWS, INPUTS], tl.float32)
    for first in range(0, hidden, INPUTS):
        i = first + tl.arange(0, INPUTS)
        there = fits[:, None] & (i < hidden)[None, :]
        at = (i * w_dim)[None, :]
        # Nobody reads a weight again before the next step, and all read x.
        gate = tl.load(of_gate + at, mask=there, other=0.0, eviction_policy="evict_first")
        if GATING != "relu2":
            up = tl.load(of_up + at, mask=there, other=0.0, eviction_policy="evict_first")
        value = tl.load(x + i * x_dim, mask=i < hidden, other=0.0).to(tl.float32)[None, :]
        gates += gate.to(tl.float32) * value
        if GATING != "relu2":
            ups += up.to(tl.float32) * value
    gate, up = tl.sum(gates, 1), tl.sum(ups, 1)
    if bias is not None:
        of_bias = bias + expert * b_expert
        gate += tl.load(of_bias + gate_row * b_row, mask=fits, other=0.0).to(tl.float32)
        up += tl.load(of_bias + up_row * b_row, mask=fits, other=0.0).to(tl.float32)
    if GATING == "relu2":
        result = tl.maximum(gate, 0.0) * tl.maximum(gate, 0.0)
    else:
        result = gated(gate, up, alpha, limit, GATING)
    tl.store(out + choice * inner + row, result.to(out.dtype.element_ty), mask=fits)


@kernel
@no_type_check
def _from_inner(
    values,  # [TOP_K, inner], contiguous
    down,  # [experts, hidden, inner]
    bias,  # [experts, hidden]; None: there is none
    out,  # [1, hidden], contiguous
    ids,  # [1, TOP_K]
    weights,  # [1, TOP_K]
    w_expert,
    w_row,
    w_dim,
    b_expert,
    b_row,
    ids_choice,
    weights_choice,
    inner,
    hidden,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    wait_for_earlier()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    fits = row < hidden
    of_row = down + (row.to(tl.int64) * w_row)[:, None]
    result = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, INPUTS], tl.float32)
    # Unrolled, so that all experts are asked for at once.
    for choice in tl.static_range(TOP_K):
        expert = tl.load(ids + choice * ids_choice)
        weight = tl.load(weights + choice * weights_choice).to(tl.float32)
        for first in range(0, inner, INPUTS):
            i = first + tl.arange(0, INPUTS)
            there = fits[:, None] & (i < inner)[None, :]
            at = of_row + expert * w_expert + (i * w_dim)[None, :]
            part = tl.load(at, mask=there, other=0.0, eviction_policy="evict_first")
            value = tl.load(values + choice * inner + i, mask=i < inner, other=0.0)
            total += part.to(tl.float32) * (weight * value.to(tl.float32))[None, :]
        if bias is not None:
            of_bias = bias + expert * b_expert + row * b_row
            result += weight * tl.load(of_bias, mask=fits, other=0.0).to(tl.float32)
    result += tl.sum(total, 1)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=fits)
