"""Tokens beside those of the same expert: a sort by counting, in the order of the tokens."""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from hybridrt.kernels.triton.launch import block_of, kernel, wait_for_earlier

COUNTED = 512  # assignments that a program counts
COMPARED = 16  # of them at a time with all of those
PREFIXES = 8192  # counts at a time of which sums are made
ELEMENTS = 8192  # that a program copies


class SpreadRows(NamedTuple):
    """A row for each assignment, sorted by expert.

    Attributes:
        rows: the token's row for each assignment.
        expert_ids: whose they are.
        places: where in `rows` an assignment is.
        ends: behind the last row of each expert.
    """

    rows: Float[Tensor, "assignments hidden"]
    expert_ids: Int64[Tensor, " assignments"]
    places: Int32[Tensor, "tokens top_k"]
    ends: Int32[Tensor, " experts"]


def spread_rows(
    x: Float[Tensor, "tokens hidden"], expert_ids: Int64[Tensor, "tokens top_k"], experts: int
) -> SpreadRows:
    """Each token's row once for each of its experts; an expert's rows are in the tokens' order."""
    (tokens, hidden), top_k = x.shape, expert_ids.shape[1]
    ids, assignments = expert_ids.flatten(), expert_ids.numel()
    blocks = triton.cdiv(assignments, COUNTED)

    def ints(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=x.device)

    counts = torch.zeros(blocks, experts, dtype=torch.int32, device=x.device)
    numbers, places, starts, ends = (
        ints(assignments),
        ints(tokens, top_k),
        ints(experts),
        ints(experts),
    )
    rows = x.new_empty(assignments, hidden)
    sorted_ids = torch.empty_like(ids)
    if assignments == 0:
        return SpreadRows(rows, sorted_ids, places, ends.zero_())
    _count[(blocks,)](
        ids, numbers, counts, assignments, experts, BLOCK=COUNTED, COMPARED=COMPARED, num_warps=8
    )
    block = block_of(experts)
    _add_up[(1,)](
        counts,
        starts,
        ends,
        blocks,
        experts,
        BLOCK_B=max(1, min(triton.next_power_of_2(blocks), PREFIXES // block)),
        BLOCK_E=block,
        num_warps=8,
    )
    choices = triton.next_power_of_2(top_k)
    block = min(block_of(hidden), max(16, ELEMENTS // choices))
    _spread[(tokens, triton.cdiv(hidden, block))](
        x,
        ids,
        numbers,
        counts,
        starts,
        rows,
        sorted_ids,
        places,
        *x.stride(),
        hidden,
        experts,
        TOP_K=top_k,
        COUNTED=COUNTED,
        BLOCK_J=choices,
        BLOCK_H=block,
        num_warps=4,
    )
    return SpreadRows(rows, sorted_ids, places, ends)


@kernel
@no_type_check
def _count(
    ids,  # [assignments]
    numbers,  # [assignments]
    counts,  # [blocks, experts], all 0
    assignments,
    experts,
    BLOCK: tl.constexpr,
    COMPARED: tl.constexpr,
):
    """How many of its expert's are before an assignment in its block, and have all in a block."""
    wait_for_earlier()
    program = tl.program_id(0).to(tl.int64)
    ids += program * BLOCK
    rest = (assignments - program * BLOCK).to(tl.int32)
    number = tl.arange(0, BLOCK)
    expert = tl.load(ids + number, mask=number < rest, other=-1).to(tl.int32)
    # Those before in the lower half, those behind in the upper one.
    both = tl.zeros([BLOCK], tl.int32)
    for start in range(0, BLOCK, COMPARED):
        other = start + tl.arange(0, COMPARED)
        of_other = tl.load(ids + other, mask=other < rest, other=-2).to(tl.int32)
        one = tl.where(other[None, :] < number[:, None], 1, 1 << 16)
        is_other = (expert[:, None] == of_other[None, :]) & (other[None, :] != number[:, None])
        both += tl.sum(tl.where(is_other, one, 0), 1)
    before = both & 0xFFFF
    tl.store(numbers + program * BLOCK + number, before, mask=number < rest)
    is_last = (number < rest) & (both >> 16 == 0)
    tl.store(counts + program * experts + expert, before + 1, mask=is_last)


@kernel
@no_type_check
def _add_up(
    counts,  # [blocks, experts]: becomes what an expert has in the blocks before
    starts,  # [experts]
    ends,  # [experts]
    blocks,
    experts,
    BLOCK_B: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    wait_for_earlier()
    expert = tl.arange(0, BLOCK_E).to(tl.int64)
    fits = expert < experts
    total = tl.zeros([BLOCK_E], tl.int32)
    for first in range(0, blocks, BLOCK_B):
        block = first + tl.arange(0, BLOCK_B)
        there = (block < blocks)[:, None] & fits[None, :]
        at = counts + (block * experts)[:, None] + expert[None, :]
        count = tl.load(at, mask=there, other=0)
        before = total[None, :] + tl.cumsum(count, 0) - count
        tl.store(at, before, mask=there)
        total += tl.sum(count, 0)
    end = tl.cumsum(total, 0)
    tl.store(ends + expert, end, mask=fits)
    tl.store(starts + expert, end - total, mask=fits)


@kernel
@no_type_check
def _spread(
    x,  # [tokens, hidden]
    ids,  # [tokens, TOP_K], contiguous as all that follows
    numbers,  # [tokens, TOP_K]
    counts,  # [blocks, experts], as `_add_up` leaves them
    starts,  # [experts]
    rows,  # [assignments, hidden]
    sorted_ids,  # [assignments]
    places,  # [tokens, TOP_K]
    x_token,
    x_dim,
    hidden,
    experts,
    TOP_K: tl.constexpr,
    COUNTED: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    choice = tl.arange(0, BLOCK_J)
    is_choice = choice < TOP_K
    at = token * TOP_K + choice
    expert = tl.load(ids + at, mask=is_choice, other=0)
    place = tl.load(starts + expert, mask=is_choice, other=0)
    place += tl.load(counts + at // COUNTED * experts + expert, mask=is_choice, other=0)
    place += tl.load(numbers + at, mask=is_choice, other=0)
    if tl.program_id(1) == 0:
        tl.store(places + at, place, mask=is_choice)
        tl.store(sorted_ids + place, expert, mask=is_choice)
    column = tl.program_id(1).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)
    fits = column < hidden
    row = tl.load(x + token * x_token + column * x_dim, mask=fits, other=0.0)
    at = rows + (place.to(tl.int64) * hidden)[:, None] + column[None, :]
    value = tl.broadcast_to(row[None, :], (BLOCK_J, BLOCK_H))
    tl.store(at, value, mask=is_choice[:, None] & fits[None, :])
