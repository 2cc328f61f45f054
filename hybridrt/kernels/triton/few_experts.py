"""moe_experts for a decode step's tokens: experts find their tokens, which nobody sorted."""

from math import inf
from typing import Literal, no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.triton.expert_tile import tile_from_inner, tile_to_inner
from hybridrt.kernels.triton.gates import kind_of
from hybridrt.kernels.triton.launch import (
    block_of,
    cdiv,
    jit,
    kernel,
    num_processors,
    row_strides,
    wait_for_earlier,
)
from hybridrt.kernels.triton.one_row_experts import one_row_experts
from hybridrt.kernels.triton.weighted_sum import weighted_sum

# What a program multiplies at a time: of the gate and `up` each, and of a matrix alone.
COLUMNS, DOWN_COLUMNS, INPUTS_BYTES = 32, 64, 256
STAGES, WARPS = 4, 4
PROGRAMS = 2  # a processor; where there aren't as many, tiles are narrower
SEARCHED = 8192  # pairs of a row and an assignment that are compared at a time


def few_experts(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    gate_up_bias: Float[Tensor, "experts twice_inner"] | None = None,
    down_bias: Float[Tensor, "experts hidden"] | None = None,
    gating: Gating | Literal["relu2"] = "silu",
    alpha: float = 1.0,
    limit: float = inf,
) -> Float[Tensor, "tokens hidden"]:
    """See `hybridrt.kernels.moe.stacked_moe_experts`, and `relu2_moe` for "relu2".

    Each expert's matrices are read once, if it has no more tokens than a tile has rows.
    """
    (experts, hidden, inner), assignments = down.shape, expert_ids.numel()
    if assignments == 0:
        return x.new_zeros(x.shape)
    if len(x) == 1:
        rest = (gate_up_bias, down_bias, gating, alpha, limit)
        return one_row_experts(x, gate_up, down, expert_ids, weights, *rest)
    ids = expert_ids.flatten().contiguous()
    search = _search(assignments, experts)
    groups = min(assignments, experts)
    most = DOWN_COLUMNS if gating == "relu2" else COLUMNS
    columns = _columns(most, groups, inner, x.device)
    values = x.new_empty(assignments, inner)
    kind, by_turns = kind_of(gating)
    _to_inner[(groups, cdiv(inner, columns))](
        x,
        gate_up,
        gate_up_bias,
        values,
        ids,
        *x.stride(),
        *gate_up.stride(),
        *row_strides(gate_up_bias, 2),
        assignments,
        hidden,
        inner,
        expert_ids.shape[1],
        alpha,
        limit,
        GATING=kind,
        BY_TURNS=by_turns,
        **search,
        **_tile(columns, hidden, x.itemsize),
    )
    columns = _columns(DOWN_COLUMNS, groups, hidden, x.device)
    out = torch.empty(assignments, hidden, dtype=torch.float32, device=x.device)
    _from_inner[(groups, cdiv(hidden, columns))](
        values,
        down,
        down_bias,
        out,
        ids,
        *down.stride(),
        *row_strides(down_bias, 2),
        assignments,
        inner,
        hidden,
        **search,
        **_tile(columns, inner, x.itemsize),
    )
    return weighted_sum(out, weights, None, x.dtype)


def _search(assignments: int, experts: int) -> dict[str, int | bool]:
    """How a program finds its expert's tokens: by the rows of a tile, some assignments at a time.

    Most experts should have no more than a tile has rows, as the next ones read all weights anew.
    """
    mean = assignments / experts
    rows = 16 if mean <= 8 else 32 if mean <= 20 else 64
    block = min(block_of(assignments), SEARCHED // rows)
    return {"BY_EXPERT": experts < assignments, "BLOCK_M": rows, "BLOCK_A": block}


def _columns(most: int, groups: int, outputs: int, device: torch.device) -> int:
    """Of a tile: as many as leave work for every processor."""
    while most > 16 and groups * cdiv(outputs, most) < PROGRAMS * num_processors(device):
        most //= 2
    return most


def _tile(columns: int, inputs: int, itemsize: int) -> dict[str, int]:
    block = min(block_of(inputs), INPUTS_BYTES // itemsize)
    return {"BLOCK_N": columns, "BLOCK_K": block, "num_warps": WARPS, "num_stages": STAGES}


@jit
@no_type_check
def _rows_of(expert, ids, assignments, before, BLOCK_M: tl.constexpr, BLOCK_A: tl.constexpr):
    """An expert's assignments from the number `before` on, which of them there are.

    And how many it has in all, and the first of them.
    """
    row = before + tl.arange(0, BLOCK_M)
    found = tl.zeros([BLOCK_M], tl.int32)
    count, first = 0, assignments
    for start in range(0, assignments, BLOCK_A):
        at = start + tl.arange(0, BLOCK_A)
        is_its = tl.load(ids + at, mask=at < assignments, other=-1) == expert
        one = is_its.to(tl.int32)
        number = count + tl.cumsum(one, 0) - one
        is_row = (number[None, :] == row[:, None]) & is_its[None, :]
        found += tl.sum(tl.where(is_row, at[None, :], 0), 1)
        count += tl.sum(one, 0)
        first = tl.minimum(first, tl.min(tl.where(is_its, at, assignments), 0))
    return found.to(tl.int64), row < count, count, first


@jit
@no_type_check
def _expert_of(group, ids, assignments, BY_EXPERT: tl.constexpr, BLOCK_M, BLOCK_A):
    """The expert of a group and its first assignments, as `_rows_of` gives them.

    A group is an expert, or where there are more of those an assignment: the first of its
    expert's has them all, and the count of the others is 0.
    """
    expert = group if BY_EXPERT else tl.load(ids + group)
    found, live, count, first = _rows_of(expert, ids, assignments, 0, BLOCK_M, BLOCK_A)
    if not BY_EXPERT:
        count = tl.where(first == group, count, 0)
    return expert, found, live, count


@kernel
@no_type_check
def _to_inner(
    x,  # [tokens, hidden]
    gate_up,  # [experts, 2 * inner, hidden]
    bias,  # [experts, 2 * inner]; None: there is none
    out,  # [assignments, inner], contiguous
    ids,  # [assignments], contiguous
    x_token,
    x_dim,
    w_expert,
    w_row,
    w_dim,
    b_expert,
    b_row,
    assignments,
    hidden,
    inner,
    top_k,
    alpha,
    limit,
    GATING: tl.constexpr,
    BY_TURNS: tl.constexpr,
    BY_EXPERT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    wait_for_earlier()
    group = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    expert, assignment, live, count = _expert_of(
        group, ids, assignments, BY_EXPERT, BLOCK_M, BLOCK_A
    )
    strides = (x_token, x_dim, w_expert, w_row, w_dim, b_expert, b_row)
    done = 0
    while done < count:
        tile_to_inner(
            x, gate_up, bias, out, expert, assignment, live, column, strides, hidden, inner, top_k,
            alpha, limit, GATING, BY_TURNS, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        done += BLOCK_M
        if done < count:
            assignment, live, _, _ = _rows_of(expert, ids, assignments, done, BLOCK_M, BLOCK_A)


@kernel
@no_type_check
def _from_inner(
    values,  # [assignments, inner], contiguous
    down,  # [experts, hidden, inner]
    bias,  # [experts, hidden]; None: there is none
    out,  # float32 [assignments, hidden], contiguous
    ids,  # [assignments], contiguous
    w_expert,
    w_row,
    w_dim,
    b_expert,
    b_row,
    assignments,
    inner,
    hidden,
    BY_EXPERT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    wait_for_earlier()
    group = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    expert, assignment, live, count = _expert_of(
        group, ids, assignments, BY_EXPERT, BLOCK_M, BLOCK_A
    )
    strides = (w_expert, w_row, w_dim, b_expert, b_row)
    done = 0
    while done < count:
        tile_from_inner(
            values, down, bias, out, expert, assignment, live, column, strides, inner, hidden,
            BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        done += BLOCK_M
        if done < count:
            assignment, live, _, _ = _rows_of(expert, ids, assignments, done, BLOCK_M, BLOCK_A)
