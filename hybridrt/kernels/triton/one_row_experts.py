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
from hybridrt.kernels.triton.gates import gated, kind_of, sigmoid
from hybridrt.kernels.triton.launch import (
    LINE,
    ask_for,
    block_of,
    cdiv,
    jit,
    kernel,
    row_strides,
    wait_and_hold_back,
    wait_for_earlier,
)
from hybridrt.kernels.triton.one_row import multiply_rows

# Of a program, by 128 threads: rows of the gate and `up` each, of a matrix alone, and how many
# numbers of a row at a time.
_INNER, _HIDDEN, _INPUTS = 1, 2, 1024

# Of the second product: parts of `_HIDDEN` rows that are asked for at a time, and those of the
# shared expert before its inner values are there. More of them would take registers from others.
_TILES, _AHEAD = 5, 2


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
    s_values, s_parts = x.new_empty(s_inner), cdiv(s_inner, _INNER)
    s_logit = None if s_gate is None else torch.empty(1, dtype=torch.float32, device=x.device)
    parts, others = cdiv(inner, _INNER), s_parts + (s_gate is not None)
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
        ROWS=_INNER,
        **_inputs(hidden),
    )
    out = x.new_empty(1, hidden)
    how = _inputs(inner)
    parts = cdiv(inner, how["INPUTS"])
    _from_inner[(cdiv(hidden, _HIDDEN),)](
        values,
        down,
        down_bias,
        out,
        expert_ids,
        weights,
        s_values,
        s_down,
        s_logit,
        *down.stride(),
        *row_strides(down_bias, 2),
        expert_ids.stride(1),
        weights.stride(1),
        row_strides(s_down, 2)[0],
        inner,
        s_inner,
        hidden,
        TOP_K=top_k,
        CHOICES=block_of(top_k, 1),
        LINES=block_of(cdiv(inner * x.itemsize, LINE.value), 1),
        PARTS=parts,
        AHEAD=min(cdiv(s_inner, how["INPUTS"]), _AHEAD),
        ROWS=_HIDDEN,
        TILES=_most_at_once(top_k * parts),
        **how,
    )
    return out


def _inputs(size: int) -> dict[str, int]:
    """Of a row at a time, and the warps for so many: 16 bytes of bfloat16 for each thread."""
    block = min(block_of(size), _INPUTS)
    return {"INPUTS": block, "num_warps": max(1, block // 256)}


def _most_at_once(tiles: int) -> int:
    """How many parts of rows are asked for at once: as many as registers hold, each time."""
    return max(count for count in range(1, _TILES + 1) if tiles % count == 0)


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
def _first_of(of_row, fits, inputs, INPUTS: tl.constexpr):
    """The first numbers of rows. Nobody reads a weight again before the next step."""
    there = fits[:, None] & (tl.arange(0, INPUTS) < inputs)[None, :]
    return tl.load(of_row, mask=there, other=0.0, eviction_policy="evict_first")


@jit
@no_type_check
def _part_of(values, start, size, INPUTS: tl.constexpr):
    """A part of an expert's inner values."""
    i = start + tl.arange(0, INPUTS)
    return tl.load(values + i, mask=i < size, other=0.0)


@jit
@no_type_check
def _product(numbers, values, factor):
    """Of a part of some rows with one of inner values, yet to be added up."""
    return numbers.to(tl.float32) * (factor * values.to(tl.float32))[None, :]


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
    if part >= first:
        choice = (part - first) // parts
        part = part - first - choice * parts
        wait_and_hold_back()
        expert = tl.load(ids + choice.to(tl.int64) * ids_choice)
        matrix = gate_up + expert * w_expert
        row, of_row, fits = _rows_of(
            part, matrix, w_row, w_dim, inner, BY_TURNS, EACH, ROWS, INPUTS
        )
        numbers = _first_of(of_row, fits, hidden, INPUTS)
        sums = multiply_rows(x, x_dim, of_row, numbers, fits, hidden, EACH * ROWS, INPUTS, w_dim)
        if bias is not None:
            of_bias = bias + expert * b_expert + row.to(tl.int64) * b_row
            sums += tl.load(of_bias, mask=fits, other=0.0).to(tl.float32)
        if GATING == "relu2":
            result = tl.maximum(sums, 0.0) * tl.maximum(sums, 0.0)
        else:
            gate, up = _take_apart(sums, ROWS)
            result = gated(gate, up, alpha, limit, GATING)
        value = part * ROWS + tl.arange(0, ROWS)
        at = out + choice.to(tl.int64) * inner + value
        tl.store(at, result.to(out.dtype.element_ty), mask=value < inner)
    elif s_gate_up is not None:
        is_value = part < s_parts
        weight, s_size = s_gate_up, s_inner
        if s_gate is not None and not is_value:
            # One row, also in place of that of `up`.
            weight, s_size, s_row, part = s_gate, 1, 0, 0
        _, of_row, fits = _rows_of(part, weight, s_row, 1, s_size, False, 2, ROWS, INPUTS)
        # No kernel before this one writes weights, so the first ones come while those are at work.
        numbers = _first_of(of_row, fits, hidden, INPUTS)
        wait_and_hold_back()
        sums = multiply_rows(x, x_dim, of_row, numbers, fits, hidden, 2 * ROWS, INPUTS)
        gate, up = _take_apart(sums, ROWS)
        value = part * ROWS + tl.arange(0, ROWS)
        if is_value:
            result = gated(gate, up, 1.0, 1.0, "silu").to(s_out.dtype.element_ty)
            tl.store(s_out + value, result, mask=value < s_inner)
        elif s_gate is not None:
            tl.store(s_logit + value, gate, mask=value < 1)


@kernel
@no_type_check
def _from_inner(
    values,  # [TOP_K, inner], contiguous
    down,  # [experts, hidden, inner]
    bias,  # [experts, hidden]; None: there is none
    out,  # [1, hidden], contiguous
    ids,  # [1, TOP_K]
    weights,  # [1, TOP_K]
    s_values,  # of the shared expert, [s_inner], contiguous
    s_down,  # [hidden, s_inner], whose rows have no gaps; None: there is none
    s_logit,  # float32 [1]; None: it has no gate
    w_expert,
    w_row,
    w_dim,
    b_expert,
    b_row,
    ids_choice,
    weights_choice,
    s_row,
    inner,
    s_inner,
    hidden,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,  # powers of two that hold them, and a row's lines of memory
    LINES: tl.constexpr,
    PARTS: tl.constexpr,  # of INPUTS numbers, in a row of the chosen experts
    TILES: tl.constexpr,  # ROWS of such parts, at a time
    AHEAD: tl.constexpr,  # parts of the shared expert's that are asked for before the wait
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    fits = row < hidden
    i = tl.arange(0, INPUTS)
    result = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, INPUTS], tl.float32)
    if s_down is not None:
        of_shared = s_down + (row.to(tl.int64) * s_row)[:, None] + i[None, :]
        ahead = ()
        for j in tl.static_range(AHEAD):
            of_part = of_shared + j * INPUTS
            ahead += (_first_of(of_part, fits, s_inner - j * INPUTS, INPUTS),)
    # `_to_inner` has held this back until the choice was there.
    in_line: tl.constexpr = LINE * 8 // down.dtype.element_ty.primitive_bitwidth
    each, line = tl.arange(0, CHOICES), tl.arange(0, LINES) * in_line
    chosen = tl.load(ids + each * ids_choice, mask=each < TOP_K, other=0, cache_modifier=".cg")
    of_line = down + (chosen * w_expert)[None, :, None] + (line * w_dim)[None, None, :]
    there = (each < TOP_K)[None, :, None] & (line < inner)[None, None, :]
    of_line += (row.to(tl.int64) * w_row)[:, None, None]
    ask_for(of_line, fits[:, None, None] & there)
    wait_for_earlier()
    of_row = down + (row.to(tl.int64) * w_row)[:, None] + (i * w_dim)[None, :]
    for first in range(0, TOP_K * PARTS, TILES):
        tiles, parts = (), ()
        for j in tl.static_range(TILES):
            choice, start = (first + j) // PARTS, (first + j) % PARTS * INPUTS
            expert = tl.load(ids + choice * ids_choice)
            at = of_row + expert * w_expert + start * w_dim
            tiles += (_first_of(at, fits, inner - start, INPUTS),)
            parts += (_part_of(values + choice * inner, start, inner, INPUTS),)
        # The assembler would ask for some once others have come and been added; but it moves no
        # load over a barrier, so that nothing can be added before the weights behind it.
        tl.debug_barrier()
        for j in tl.static_range(TILES):
            choice, start = (first + j) // PARTS, (first + j) % PARTS * INPUTS
            weight = tl.load(weights + choice * weights_choice).to(tl.float32)
            total += _product(tiles[j], parts[j], weight)
            if bias is not None:
                expert = tl.load(ids + choice * ids_choice)
                of_bias = bias + expert * b_expert + row * b_row
                added = tl.load(of_bias, mask=fits & (start == 0), other=0.0)
                result += weight * added.to(tl.float32)
    if s_down is not None:
        factor = 1.0
        if s_logit is not None:
            factor = sigmoid(tl.load(s_logit))
        for j in tl.static_range(AHEAD):
            part = _part_of(s_values, j * INPUTS, s_inner, INPUTS)
            total += _product(ahead[j], part, factor)
        for start in range(AHEAD * INPUTS, s_inner, INPUTS):
            numbers = _first_of(of_shared + start, fits, s_inner - start, INPUTS)
            part = _part_of(s_values, start, s_inner, INPUTS)
            total += _product(numbers, part, factor)
    result += tl.sum(total, 1)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=fits)
