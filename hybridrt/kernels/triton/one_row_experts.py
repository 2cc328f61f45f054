"""moe_experts for one token in Triton: its experts' weights by rows, each read once.

The expert that all tokens share goes with them: alone it would take as long as all of them.
"""

from math import inf
from typing import Literal, no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.shared_expert import SharedExpert
from hybridrt.kernels.triton.gates import gated, kind_of
from hybridrt.kernels.triton.launch import cdiv, jit, kernel, row_strides, wait_and_hold_back
from hybridrt.kernels.triton.one_row import multiply_rows
from hybridrt.kernels.triton.one_row_from_inner import first_of, from_inner, inputs_of

# Of a program: inner values, and how many numbers of their rows at a time. Fewer where the last of
# them would leave more than an eighth of all places empty, as with 2,304 numbers.
_ROWS, _INPUTS, _LEAST_INPUTS = 1, 1024, 256


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
    shared: SharedExpert | None = None,
) -> Float[Tensor, "1 hidden"]:
    """See `hybridrt.kernels.moe.stacked_moe_experts`, and `relu2_moe` for "relu2"; one token.

    With `shared` see `hybridrt.kernels.shared_expert`; the rows of its weights have no gaps.
    """
    (_, hidden, inner), top_k = down.shape, expert_ids.shape[1]
    kind, by_turns = kind_of(gating)
    values = x.new_empty(top_k, inner)
    s_gate_up, s_down, s_gate = shared or (None, None, None)
    s_inner = 0 if s_down is None else s_down.shape[1]
    s_values, s_parts = x.new_empty(s_inner), cdiv(s_inner, _ROWS)
    s_logit = None if s_gate is None else torch.empty(1, dtype=torch.float32, device=x.device)
    parts, others = cdiv(inner, _ROWS), s_parts + (s_gate is not None)
    _to_inner[(others + top_k * parts,)](
        x,
        gate_up,
        gate_up_bias,
        values,
        expert_ids,
        s_gate_up,
        s_values,
        s_gate,
        s_logit,
        x.stride(1),
        *gate_up.stride(),
        *row_strides(gate_up_bias, 2),
        expert_ids.stride(1),
        row_strides(s_gate_up, 2)[0],
        hidden,
        inner,
        s_inner,
        parts,
        s_parts,
        others,
        alpha,
        limit,
        GATING=kind,
        BY_TURNS=by_turns,
        ROWS=_ROWS,
        **inputs_of(hidden, _inputs_at_once(hidden)),
    )
    routed = values, down, down_bias, expert_ids, weights
    return from_inner(*routed, s_values, s_down, s_logit)


def _inputs_at_once(hidden: int) -> int:
    most = _INPUTS
    while most > _LEAST_INPUTS and cdiv(hidden, most) * most > hidden + hidden // 8:
        most //= 2
    return most


@jit
@no_type_check
def _rows_of(
    part,  # of an expert's inner values, ROWS of them
    weight,  # [EACH * inner, hidden]
    w_row,
    w_dim,
    inner,
    BY_TURNS: tl.constexpr,
    EACH: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """The rows of a matrix that make some inner values: their numbers, places and which fit.

    The gate's and those of `up` by turns, so that one sum is taken for both.
    """
    number = part * (EACH * ROWS) + tl.arange(0, EACH * ROWS)
    row = number
    if EACH == 2 and not BY_TURNS:
        row = number // 2 + number % 2 * inner
    of_row = weight + (row.to(tl.int64) * w_row)[:, None]
    return row, of_row + (tl.arange(0, INPUTS) * w_dim)[None, :], number < EACH * inner


@jit
@no_type_check
def _take_apart(sums, ROWS: tl.constexpr):
    """Those of the gate and those of `up`."""
    return tl.split(tl.reshape(sums, [ROWS, 2]))


@kernel
@no_type_check
def _to_inner(
    x,  # [1, hidden]
    gate_up,  # [experts, 2 * inner, hidden]; of "relu2" [experts, inner, hidden]
    bias,  # [experts, 2 * inner]; None: there is none
    out,  # [top_k, inner], contiguous
    ids,  # [1, top_k]
    s_gate_up,  # of the shared expert, [2 * s_inner, hidden]; None: there is none
    s_out,  # [s_inner], contiguous
    s_gate,  # [1, hidden], without gaps; None: it has no gate
    s_logit,  # float32 [1]
    x_dim,
    w_expert,
    w_row,
    w_dim,
    b_expert,
    b_row,
    ids_choice,
    s_row,
    hidden,
    inner,
    s_inner,
    parts,  # programs of an expert
    s_parts,  # of the shared one
    first,  # of the chosen ones; before it are those of the shared one and its gate
    alpha,
    limit,
    GATING: tl.constexpr,
    BY_TURNS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    EACH: tl.constexpr = 1 if GATING == "relu2" else 2
    part = tl.program_id(0)
    is_chosen, is_gate = part >= first, part == s_parts
    if s_gate_up is not None:
        # Numbers that are 1 are constants, which others can't take the place of.
        s_row, s_size = tl.cast(s_row, tl.int32), tl.cast(s_inner, tl.int32)
        weight, s_part = s_gate_up, part
        if s_gate is not None and is_gate:
            # One row, also in place of that of `up`.
            weight, s_part, s_size, s_row = s_gate, 0, 1, 0
        _, s_of_row, s_fits = _rows_of(s_part, weight, s_row, 1, s_size, False, 2, ROWS, INPUTS)
        # No kernel before this one writes weights, so the first ones come while those are at work.
        # Of programs of the chosen experts no row fits.
        s_numbers = first_of(s_of_row, s_fits, hidden, INPUTS)
    wait_and_hold_back()
    if is_chosen:
        choice = ((part - first) // parts).to(tl.int64)
        part = (part - first) % parts
        expert = tl.load(ids + choice * ids_choice)
        matrix = gate_up + expert * w_expert
        row, of_row, fits = _rows_of(
            part, matrix, w_row, w_dim, inner, BY_TURNS, EACH, ROWS, INPUTS
        )
        numbers = first_of(of_row, fits, hidden, INPUTS)
        sums = multiply_rows(
            x, x_dim, of_row, numbers, fits, hidden, EACH * ROWS, INPUTS, w_dim, True
        )
        if bias is not None:
            of_bias = bias + expert * b_expert + row.to(tl.int64) * b_row
            sums += tl.load(of_bias, mask=fits, other=0.0).to(tl.float32)
        if GATING == "relu2":
            result = tl.maximum(sums, 0.0) * tl.maximum(sums, 0.0)
        else:
            gate, up = _take_apart(sums, ROWS)
            result = gated(gate, up, alpha, limit, GATING)
        value = part * ROWS + tl.arange(0, ROWS)
        at = out + choice * inner + value
        tl.store(at, result.to(out.dtype.element_ty), mask=value < inner)
    elif s_gate_up is not None:
        sums = multiply_rows(
            x, x_dim, s_of_row, s_numbers, s_fits, hidden, 2 * ROWS, INPUTS, 1, True
        )
        gate, up = _take_apart(sums, ROWS)
        value = s_part * ROWS + tl.arange(0, ROWS)
        if s_gate is not None and is_gate:
            tl.store(s_logit + value, gate, mask=value < 1)
        else:
            result = gated(gate, up, 1.0, 1.0, "silu")
            tl.store(s_out + value, result.to(s_out.dtype.element_ty), mask=value < s_inner)
