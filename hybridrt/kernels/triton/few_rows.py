"""A linear layer on a few tokens in Triton: its weight is read once, by all processors.

That takes parts of the inputs where outputs are few. Where there are more, cuBLAS is as fast.
"""

from typing import NamedTuple, no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hybridrt.kernels.triton.launch import (
    block_of,
    cdiv,
    kernel,
    num_processors,
    shared_memory,
    wait_for_earlier,
)

MOST_ROWS = 64


class Tile(NamedTuple):
    """Outputs of a program, inputs at a time, and how many of these are on their way."""

    outputs: int
    inputs: int
    stages: int


NARROW, NARROWEST = Tile(64, 128, 4), Tile(32, 256, 4)
_MOST_PARTS = 16
_ARRIVED = WeakTensorKeyDictionary()


def takes(x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"]) -> bool:
    """Whether `few_rows_linear` can have them, and does well: numbers of 16 bits, few of them."""
    rows = x.numel() // max(1, x.shape[-1])
    without_gaps = weight.stride(1) == 1 == x.stride(-1)
    of_16_bits = x.dtype == weight.dtype and x.itemsize == 2
    most_outputs = NARROW.outputs * num_processors(x.device)
    fits = 1 < rows <= MOST_ROWS and len(weight) <= most_outputs and _has_room(x.device)
    return fits and without_gaps and of_16_bits


def few_rows_linear(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*batch outputs"]:
    """See `hybridrt.kernels.linear`. A row's bits don't depend on how many others there are."""
    (outputs, inputs), rows = weight.shape, x.flatten(0, -2)
    out = x.new_empty(len(rows), outputs)
    tile = _tile(outputs, x.device)
    tiles, blocks = cdiv(outputs, tile.outputs), cdiv(inputs, tile.inputs)
    most = min(_MOST_PARTS, num_processors(x.device) // tiles, blocks // 2)
    in_part = cdiv(blocks, max(1, most))  # blocks
    parts = cdiv(blocks, in_part)
    block_m = block_of(len(rows))
    sums = arrived = None
    if parts > 1:
        sums = torch.empty(tiles, parts, tile.outputs, block_m, device=x.device)
        arrived = _counters(weight, tiles)
    _multiply[(tiles, parts)](
        rows,
        weight,
        bias,
        out,
        sums,
        arrived,
        rows.stride(0),
        weight.stride(0),
        len(rows),
        outputs,
        inputs,
        in_part,
        parts,
        WHOLE=inputs % tile.inputs == 0,
        BLOCK_M=block_m,
        BLOCK_N=tile.outputs,
        BLOCK_K=tile.inputs,
        num_warps=4,
        num_stages=tile.stages,
    )
    return out.view(*x.shape[:-1], outputs)


def _tile(outputs: int, device: torch.device) -> Tile:
    """Wider ones read x less often; the others are for all processors, in fewer parts."""
    is_wide = 8 * cdiv(outputs, NARROW.outputs) >= num_processors(device)
    return NARROW if is_wide else NARROWEST


def _has_room(device: torch.device) -> bool:
    numbers = (NARROWEST.outputs + MOST_ROWS) * NARROWEST.inputs * NARROWEST.stages
    return shared_memory(device) >= 2 * numbers


def _counters(weight: Tensor, tiles: int) -> Int32[Tensor, " tiles"]:
    """How many parts of each tile have come, a weight's own: nobody multiplies it twice at a time.

    They are zeros before a product and behind it.
    """
    found = _ARRIVED.get(weight)
    if found is None:
        found = torch.zeros(tiles, dtype=torch.int32, device=weight.device)
        _ARRIVED[weight] = found
    return found


@kernel(do_not_specialize=["rows", "in_part", "parts"])
@no_type_check
def _multiply(
    x,  # [rows, inputs], whose rows have no gaps
    weight,  # [outputs, inputs], whose rows have no gaps
    bias,  # [outputs]; None: there is none
    out,  # [rows, outputs], contiguous
    sums,  # float32 [tiles, parts, BLOCK_N, BLOCK_M]; None: all inputs are in one part
    arrived,  # int32 [tiles]; None likewise
    x_row,
    weight_row,
    rows,
    outputs,
    inputs,
    in_part,
    parts,
    WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A part of the inputs for a tile of outputs; the last part that comes adds up all of them.

    Always in their order, so that sums have the same bits each time. WHOLE: inputs are of whole
    blocks.
    """
    wait_for_earlier()
    tile, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    row = tile * BLOCK_N + n
    fits, is_row = row < outputs, m < rows
    first = part * in_part * BLOCK_K
    stop = tl.minimum(first + in_part * BLOCK_K, inputs)
    left = weight + (row * weight_row)[:, None] + k[None, :]
    right = x + (m * x_row)[None, :] + k[:, None]
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for at in range(first, stop, BLOCK_K):
        there, seen = fits[:, None], is_row[None, :]
        if not WHOLE:
            there &= (at + k < stop)[None, :]
            seen &= (at + k < stop)[:, None]
        # Nobody reads a weight again before the next step, and all read x.
        factor = tl.load(left + at, mask=there, other=0.0, eviction_policy="evict_first")
        total = tl.dot(factor, tl.load(right + at, mask=seen, other=0.0), total)
    is_last = True
    if sums is not None:
        of_tile = sums + tile * parts * BLOCK_N * BLOCK_M + n[:, None] * BLOCK_M + m[None, :]
        tl.store(of_tile + part * BLOCK_N * BLOCK_M, total)
        # All threads have stored theirs before one of them says so.
        tl.debug_barrier()
        is_last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == parts - 1
    if is_last:
        if sums is not None:
            total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for i in range(0, parts):
                # From where other processors' stores are seen.
                total += tl.load(of_tile + i * BLOCK_N * BLOCK_M, cache_modifier=".cg")
            tl.store(arrived + tile, 0)
        if bias is not None:
            total += tl.load(bias + row, mask=fits, other=0.0).to(tl.float32)[:, None]
        at_out = out + (m.to(tl.int64) * outputs)[None, :] + row[:, None]
        tl.store(at_out, total.to(out.dtype.element_ty), mask=fits[:, None] & is_row[None, :])
