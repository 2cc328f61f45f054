"""A linear layer whose outputs gate each other, in numba: neither half is written to memory."""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves
from hybridrt.kernels.cpu.gated import times_sigmoid
from hybridrt.kernels.cpu.jit import apart, calls, inner, inner_exact
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.packed_linear import (
    AT_ONCE,
    add_products,
    begin_sums,
    is_small,
    next_job,
    share_of,
)
from hybridrt.kernels.cpu.share import parallel_kernel, share
from hybridrt.kernels.cpu.streams import end_streams, stream, streams
from hybridrt.kernels.cpu.tile_registers import multiplies_tiles, release_tiles, take_tiles
from hybridrt.kernels.cpu.tile_square import is_square
from hybridrt.kernels.cpu.tiles import add_by_tiles
from hybridrt.kernels.cpu.vector_math import mul
from hybridrt.kernels.cpu.vectors import LANES, aligned, load, pointer, store

MOST_SUMS = 512
"""Tokens times blocks of gates, which stay in the second cache: 128 KiB."""

FEWEST, MOST = 17, MOST_SUMS // 4
"""Tokens: of fewer, a leap costs more than the gate. Of more, AMX alone is taken: oneDNN's product
is faster than one of pairs, and of what they are widened to more were not measured."""


def takes(tokens: int, width: int, outputs: int, inputs: int) -> bool:
    """Whether `packed_gated` is faster than the product and the gate one after the other.

    A block then has either gates or what they gate. What `multiply_square` takes is left to it.
    """
    whole, most = outputs % (2 * OUTPUTS) == 0, 2**31 if multiplies_tiles() else MOST
    return whole and FEWEST <= tokens <= most and not is_square(width, tokens, inputs)


def packed_gated(
    x: BFloat16[Tensor, "*batch inputs"],
    address: int,
    width: int,
    block_bytes: int,
    bias: BFloat16[Tensor, " outputs"] | None,
    outputs: int,
) -> BFloat16[Tensor, "*batch inner"]:
    """What `silu_gated` makes of `packed_linear`'s result, bit for bit."""
    *batch, inputs = x.shape
    x, out = x.contiguous(), torch.empty(*batch, outputs // 2, dtype=x.dtype)
    bias = None if bias is None else bias.contiguous()
    tokens, at_bias = x.numel() // inputs, 0 if bias is None else bias.data_ptr()
    args = (
        *(multiplies_tiles(), x.data_ptr(), address, width, block_bytes, at_bias),
        *(out.data_ptr(), tokens, outputs, inputs),
    )
    _gate(1 if is_small(tokens, outputs, inputs) else numba.get_num_threads(), *args)
    return out


@inner_exact  # so that `gated` gives the same bits
@no_type_check
def _write(
    gates, values, count, out, inner_size, rounded, streaming
):  # fmt: skip  # pragma: no cover  (compiled)
    """Gates `count` rows, both of them rounded first, as they would be in memory."""
    of_gates, of_values, halfway = pointer(gates), pointer(values), pointer(rounded)
    for t in range(count):
        result = pointer(halves(out + 2 * t * inner_size, OUTPUTS))
        for i in range(0, OUTPUTS, LANES):
            store(load(of_gates, t * OUTPUTS + i), halfway, 0)
            store(load(of_values, t * OUTPUTS + i), halfway, LANES)
            gate = load(halfway, 0)
            gated = mul(times_sigmoid(gate, gate), load(halfway, LANES))
            if streaming:
                store(gated, of_gates, t * OUTPUTS + i)
            else:
                store(gated, result, i)
        for i in range(0, OUTPUTS if streaming else 0, 2 * LANES):
            at = t * OUTPUTS + i
            stream(load(of_gates, at), load(of_gates, at + LANES), result, i)


@apart
@calls(add_products)
@no_type_check
def _add_block(
    registers, anew, block, width, block_bytes, vectors, inputs, sums, count, following
):  # fmt: skip  # pragma: no cover
    """Adds products of `OUTPUTS` outputs, or writes them `anew`: by AMX, if there are registers.

    By itself: wherever it is compiled together with loops around it, one of its own loses speed.
    """
    if registers != 0:
        half_bytes = 2 * OUTPUTS if width == OUTPUTS else block_bytes
        add_by_tiles(
            registers, anew != 0, block, 4 * width, half_bytes, vectors, 2 * inputs, inputs // 2,
            sums, count, following
        )  # fmt: skip
    else:
        add_products(0, 0, block, vectors, 2 * inputs, inputs // 2, sums, count, following)


@inner
@no_type_check
def _gate_blocks(
    worker, workers, claims, tiles, x, weight, width, block_bytes, bias, out, tokens, outputs,
    inputs
):  # fmt: skip  # pragma: no cover
    """A worker's share of the values of all tokens; or, with `claims`, what it claims of all.

    Gates are made a run of blocks at a time, as every leap to what they gate takes a microsecond.
    """
    blocks, of_block = outputs // 2 // OUTPUTS, OUTPUTS // width * block_bytes
    begin, end = blocks * worker // workers, blocks * (worker + 1) // workers
    parts = (tokens + AT_ONCE - 1) // AT_ONCE
    count = (tokens + parts - 1) // parts
    most = 1 if claims != 0 else max(1, min(MOST_SUMS // count, end - begin))
    runs = (end - begin + most - 1) // most
    gates = aligned(most * count * OUTPUTS).reshape((most, count * OUTPUTS))
    values, rounded = aligned(count * OUTPUTS), np.empty(2 * LANES, np.uint16)
    registers, anew = take_tiles(tiles), np.int64(tiles and bias == 0)
    streaming = streams(tokens, out, outputs)
    job = next_job(claims, -1)
    while job < runs * parts:
        token, first = job // runs * count, begin + job % runs * most
        some, run = min(count, tokens - token), min(most, end - first)
        later = job
        for i in range(2 * run):
            n = first + i if i < run else blocks + first + i - run
            then = blocks + first if i + 1 == run else n + 1
            if i + 1 == 2 * run:  # not claimed before: others would be done while it waits
                later = next_job(claims, job)
                then = begin + later % runs * most
            sums = gates[i] if i < run else values
            if not anew:
                begin_sums(sums, bias, n, OUTPUTS, some)
            _add_block(
                registers, anew, weight + n * of_block, width, block_bytes, x + 2 * inputs * token,
                inputs, sums.ctypes.data, some, weight + then * of_block
            )  # fmt: skip
            if i >= run:
                into = out + 2 * (token * (outputs // 2) + (first + i - run) * OUTPUTS)
                _write(
                    gates[i - run], values, some, into, outputs // 2, rounded, streaming
                )  # fmt: skip
        job = later
    if streaming:
        end_streams()
    release_tiles(registers)


@inner
@no_type_check
def _gate_share(
    worker, workers, claims, tiles, x, weight, width, block_bytes, bias, out, tokens, outputs,
    inputs
):  # fmt: skip  # pragma: no cover
    part, parts, claimed, first, some = share_of(worker, workers, claims, tiles, tokens)
    _gate_blocks(
        part, parts, claimed, tiles, x + 2 * inputs * first, weight, width, block_bytes, bias,
        out + outputs * first, some, outputs, inputs
    )  # fmt: skip


@parallel_kernel
@calls(_add_block)
@no_type_check
def _gate(
    threads, tiles, x, weight, width, block_bytes, bias, out, tokens, outputs, inputs
):  # fmt: skip  # pragma: no cover
    claims = np.zeros(1, np.int64)
    given = tiles, x, weight, width, block_bytes, bias, out, tokens, outputs, inputs
    share(_gate_share, threads, (claims.ctypes.data, *given))
    claims[0] = 0  # named here, as an array is given back after it was named last
