"""Assignments of tokens to experts, sorted by expert: by counting, in the order of the tokens."""

from typing import NamedTuple, no_type_check

import torch
import triton.language as tl
from jaxtyping import Int32, Int64
from torch import Tensor

from hybridrt.kernels.triton.launch import block_of, cdiv, kernel, wait_for_earlier

COUNTED = 256  # assignments that a program compares with each other
AT_ONCE = 32  # of them are on their way
SUMMED = (256, 32)  # counts at a time of which sums are made: blocks, experts
PLACED = 256  # assignments that a program finds a place for


class Sorted(NamedTuple):
    """Where assignments stand among those sorted by expert.

    Attributes:
        order: the assignment in each place.
        places: where an assignment is.
        expert_ids: whose a place is.
        ends: behind the last place of each expert.
        tiles: of each tile of places of one expert this expert, its first place and the one behind
            its last. Tiles that there could be but aren't have the expert -1.
    """

    order: Int32[Tensor, " assignments"]
    places: Int32[Tensor, "tokens top_k"]
    expert_ids: Int32[Tensor, " assignments"]
    ends: Int32[Tensor, " experts"]
    tiles: Int32[Tensor, "3 tiles"]


def sort_by_expert(
    expert_ids: Int64[Tensor, "tokens top_k"], experts: int, rows: int = 128
) -> Sorted:
    """All of it on the device: the host never learns who got how many.

    A tile has at most `rows` places.
    """
    # One behind another: `flatten` alone may give a view with gaps.
    ids, assignments = expert_ids.flatten().contiguous(), expert_ids.numel()
    blocks = cdiv(assignments, COUNTED)
    # Every expert may have a last tile that isn't full; none has a tile without an assignment.
    most = min(assignments, cdiv(assignments, rows) + experts)

    def ints(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=ids.device)

    out = Sorted(
        ints(assignments), ints(*expert_ids.shape), ints(assignments), ints(experts), ints(3, most)
    )
    if assignments == 0:
        return out._replace(ends=out.ends.zero_())
    numbers, counts, starts = ints(assignments), ints(blocks, experts), ints(2, experts)
    block = block_of(experts)
    _count[(blocks,)](
        ids,
        numbers,
        counts,
        assignments,
        experts,
        BLOCK=COUNTED,
        AT_ONCE=AT_ONCE,
        BLOCK_E=block,
        num_warps=COUNTED // 32,
    )
    _add_up[(cdiv(experts, SUMMED[1]),)](
        counts, starts, blocks, experts, BLOCK_B=SUMMED[0], BLOCK_E=SUMMED[1], num_warps=8
    )
    _end[(1,)](
        starts, out.ends, out.tiles, experts, most, rows, BLOCK_E=block, BLOCK_T=1024, num_warps=4
    )
    _place[(cdiv(assignments, PLACED),)](
        ids,
        numbers,
        counts,
        starts,
        *out,
        assignments,
        experts,
        most,
        rows,
        COUNTED=COUNTED,
        BLOCK=PLACED,
        num_warps=4,
    )
    return out


@kernel
@no_type_check
def _count(
    ids,  # [assignments]
    numbers,  # [assignments]
    counts,  # [blocks, experts]
    assignments,
    experts,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """How many of its expert's are before an assignment in its block, and have all in a block."""
    wait_for_earlier()
    program = tl.program_id(0).to(tl.int64)
    rest = assignments - tl.program_id(0) * BLOCK
    counts += program * experts
    every = tl.arange(0, BLOCK_E)
    tl.store(counts + every, tl.zeros([BLOCK_E], tl.int32), mask=every < experts)
    ids += program * BLOCK
    number = tl.arange(0, BLOCK)
    expert = tl.load(ids + number, mask=number < rest, other=-1).to(tl.int32)
    # Those before in the lower half; in the upper one those behind, and itself.
    both = tl.zeros([BLOCK], tl.int32)
    for start in range(0, BLOCK, AT_ONCE):
        # One number for all threads: they sum without asking each other.
        behind, to_end = number - start, rest - start
        for i in tl.static_range(AT_ONCE):
            of_other = tl.load(ids + start + i, mask=i < to_end, other=-2).to(tl.int32)
            one = tl.where(i < behind, 1, 1 << 16)
            both += tl.where(expert == of_other, one, 0)
    before = both & 0xFFFF
    tl.store(numbers + program * BLOCK + number, before, mask=number < rest)
    is_last = (number < rest) & (both >> 16 == 1)
    # Zeros of all threads are there before a count is.
    tl.debug_barrier()
    tl.store(counts + expert, before + 1, mask=is_last)


@kernel
@no_type_check
def _add_up(
    counts,  # [blocks, experts]: becomes what an expert has in the blocks before
    totals,  # [experts]
    blocks,
    experts,
    BLOCK_B: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    wait_for_earlier()
    expert = tl.program_id(0).to(tl.int64) * BLOCK_E + tl.arange(0, BLOCK_E)
    fits = expert < experts
    total = tl.zeros([BLOCK_E], tl.int32)
    for first in range(0, blocks, BLOCK_B):
        block = first + tl.arange(0, BLOCK_B).to(tl.int64)
        there = (block < blocks)[:, None] & fits[None, :]
        at = counts + (block * experts)[:, None] + expert[None, :]
        count = tl.load(at, mask=there, other=0)
        before = total[None, :] + tl.cumsum(count, 0) - count
        tl.store(at, before, mask=there)
        total += tl.sum(count, 0)
    tl.store(totals + expert, total, mask=fits)


@kernel
@no_type_check
def _end(
    starts,  # [2, experts]: totals; becomes first places and first tiles
    ends,  # [experts]
    tiles,  # [3, most]
    experts,
    most,
    rows,
    BLOCK_E: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    wait_for_earlier()
    expert = tl.arange(0, BLOCK_E)
    fits = expert < experts
    total = tl.load(starts + expert, mask=fits, other=0)
    end = tl.cumsum(total, 0)
    of_expert = (total + rows - 1) // rows
    tl.store(starts + expert, end - total, mask=fits)
    tl.store(starts + experts + expert, tl.cumsum(of_expert, 0) - of_expert, mask=fits)
    tl.store(ends + expert, end, mask=fits)
    for first in range(0, most, BLOCK_T):
        tile = first + tl.arange(0, BLOCK_T)
        tl.store(tiles + tile, tl.full([BLOCK_T], -1, tl.int32), mask=tile < most)


@kernel
@no_type_check
def _place(
    ids,  # [assignments], contiguous as all that follows
    numbers,  # [assignments]
    counts,  # [blocks, experts], as `_add_up` leaves them
    starts,  # [2, experts], as `_end` leaves them
    order,  # [assignments]
    places,  # [assignments]
    sorted_ids,  # [assignments]
    ends,  # [experts]
    tiles,  # [3, most]
    assignments,
    experts,
    most,
    rows,
    COUNTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < assignments
    expert = tl.load(ids + at, mask=there, other=0)
    before = tl.load(counts + at // COUNTED * experts + expert, mask=there, other=0)
    rank = before + tl.load(numbers + at, mask=there, other=1)
    place = tl.load(starts + expert, mask=there, other=0) + rank
    tl.store(places + at, place, mask=there)
    tl.store(order + place, at.to(tl.int32), mask=there)
    tl.store(sorted_ids + place, expert.to(tl.int32), mask=there)
    # The first of a tile writes it down.
    is_first = there & (rank % rows == 0)
    tile = tl.load(starts + experts + expert, mask=is_first, other=0) + rank // rows
    end = tl.load(ends + expert, mask=is_first, other=0)
    tl.store(tiles + tile, expert.to(tl.int32), mask=is_first)
    tl.store(tiles + most + tile, place, mask=is_first)
    tl.store(tiles + 2 * most + tile, tl.minimum(place + rows, end), mask=is_first)
