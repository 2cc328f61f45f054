"""The second product of one token's experts in Triton: by rows, of all of them at once."""

from typing import no_type_check

import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.kernels.triton.gates import sigmoid
from hybridrt.kernels.triton.launch import (
    block_of,
    cdiv,
    jit,
    kernel,
    row_strides,
    wait_for_earlier,
)

# Of a program: rows, how many numbers of a row are a part, how many parts of all of its rows are
# asked for at a time, and how many of the shared expert's before its inner values are there.
# More of them would take registers from others.
ROWS, INPUTS, TILES, AHEAD = 2, 1024, 5, 2
SHORT, SHORT_TILES = 512, 2  # the same of parts of fewer numbers


def from_inner(
    values: Float[Tensor, "top_k inner"],
    down: Float[Tensor, "experts hidden inner"],
    down_bias: Float[Tensor, "experts hidden"] | None,
    expert_ids: Int64[Tensor, "1 top_k"],
    weights: Float[Tensor, "1 top_k"],
    shared_values: Float[Tensor, " shared_inner"],
    shared_down: Float[Tensor, "hidden shared_inner"] | None,
    shared_logit: Float32[Tensor, " 1"] | None,
) -> Float[Tensor, "1 hidden"]:
    """`sum_j weights[0, j] * (down[e] values[j] + bias)`, e = `expert_ids[0, j]`, in float32.

    With `shared_down` its product is added, times the sigmoid of the logit if there is one. Inner
    values and rows of `shared_down` have no gaps.
    """
    (_, hidden, inner), top_k = down.shape, expert_ids.shape[1]
    shared_inner = len(shared_values)
    how = inputs_of(inner, INPUTS)
    parts, shared_parts = (cdiv(size, how["INPUTS"]) for size in (inner, shared_inner))
    out = values.new_empty(1, hidden)
    _from_inner[(cdiv(hidden, ROWS),)](
        values,
        down,
        down_bias,
        out,
        expert_ids,
        weights,
        shared_values,
        shared_down,
        shared_logit,
        *down.stride(),
        *row_strides(down_bias, 2),
        expert_ids.stride(1),
        weights.stride(1),
        row_strides(shared_down, 2)[0],
        inner,
        shared_inner,
        hidden,
        TOP_K=top_k,
        PARTS=parts,
        TILES=_at_once(top_k * parts, SHORT_TILES if how["INPUTS"] <= SHORT else TILES),
        AHEAD=min(shared_parts, AHEAD),
        ROWS=ROWS,
        **how,
    )
    return out


def inputs_of(size: int, most: int) -> dict[str, int]:
    """Of a row at a time, and the warps for so many: 16 bytes of bfloat16 for each thread."""
    block = min(block_of(size), most)
    return {"INPUTS": block, "num_warps": max(1, block // 256)}


def _at_once(tiles: int, most: int) -> int:
    """How many parts of rows are asked for at once: as many each time."""
    return max(count for count in range(1, most + 1) if tiles % count == 0)


@jit
@no_type_check
def first_of(of_row, fits, inputs, INPUTS: tl.constexpr):
    """The first numbers of rows. Nobody reads a weight again before the next step."""
    there = fits[:, None] & (tl.arange(0, INPUTS) < inputs)[None, :]
    return tl.load(of_row, mask=there, other=0.0, eviction_policy="evict_first")


@jit
@no_type_check
def _tiles_from(
    first, where, inner, PARTS: tl.constexpr, TILES: tl.constexpr, INPUTS: tl.constexpr
):
    """Parts of rows of the chosen experts from a number on."""
    ids, ids_choice, of_row, w_expert, w_dim, fits = where
    tiles = ()
    for j in tl.static_range(TILES):
        choice, start = (first + j) // PARTS, (first + j) % PARTS * INPUTS
        # Past the processor's cache, which may hold an earlier choice before the wait.
        expert = tl.load(ids + choice * ids_choice, cache_modifier=".cg")
        at = of_row + expert * w_expert + start * w_dim
        tiles += (first_of(at, fits, inner - start, INPUTS),)
    return tiles


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
            ahead += (first_of(of_part, fits, s_inner - j * INPUTS, INPUTS),)
    of_row = down + (row.to(tl.int64) * w_row)[:, None] + (i * w_dim)[None, :]
    where = (ids, ids_choice, of_row, w_expert, w_dim, fits)
    # The kernel before this one has held it back until the choice was there.
    tiles = _tiles_from(0, where, inner, PARTS, TILES, INPUTS)
    wait_for_earlier()
    for first in range(0, TOP_K * PARTS, TILES):
        if first > 0:
            tiles = _tiles_from(first, where, inner, PARTS, TILES, INPUTS)
        parts = ()
        for j in tl.static_range(TILES):
            choice, start = (first + j) // PARTS, (first + j) % PARTS * INPUTS
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
            numbers = first_of(of_shared + start, fits, s_inner - start, INPUTS)
            part = _part_of(s_values, start, s_inner, INPUTS)
            total += _product(numbers, part, factor)
    result += tl.sum(total, 1)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=fits)
