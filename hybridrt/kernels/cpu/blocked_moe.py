"""The experts of a mixture in numba, whose matrices lie in blocks.

They are of bfloat16, or of 8 or 4 bits. A job is a block of values between the two products, or
of outputs, of every token that has the expert. Dot products are summed in the same order whatever
else is in the batch, and so are a token's experts.
"""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import BFloat16, Float, Int64
from torch import Tensor

from hybridrt.kernels.blocked_matrices import BlockedMatrices
from hybridrt.kernels.cpu.bfloat16 import copy_bytes, halves, narrow, singles
from hybridrt.kernels.cpu.expert_gates import SQUARED_RELU, Gate, apply_gate
from hybridrt.kernels.cpu.expert_products import (
    blocks_of,
    make_room,
    make_row,
    multiply_block,
    room_for_rows,
)
from hybridrt.kernels.cpu.jit import calls, inner
from hybridrt.kernels.cpu.moe import SMALL, Sizes, by_expert
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.packed_linear import add_products
from hybridrt.kernels.cpu.quantised_linear import add_quantised
from hybridrt.kernels.cpu.share import share, share_each, sharing_kernel, threads_for
from hybridrt.kernels.cpu.tile_registers import release_tiles, take_tiles
from hybridrt.kernels.cpu.vectors import aligned
from hybridrt.kernels.quantised_linear import QuantisedMatrices

LOT = 128  # assignments at once: their sums stay in the second cache
RUN = 8  # blocks one behind the other: a leap to others takes a microsecond, a seventh of a block's
MOST_TOTALS = 2**10  # tokens times blocks of outputs whose sums stay in the second cache: 256 KiB
MUCH = 2**18  # numbers, which it takes longer to copy than to wake another thread


def run_blocked_experts(
    x: BFloat16[Tensor, "tokens hidden"],
    first: BlockedMatrices | QuantisedMatrices,
    second: BlockedMatrices | QuantisedMatrices,
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    first_bias: Float[Tensor, "experts rows"] | None,
    second_bias: Float[Tensor, "experts hidden"] | None,
    gate: Gate,
) -> BFloat16[Tensor, "tokens hidden"]:
    """See `hybridrt.kernels.cpu.moe.run_experts`.

    Raises:
        IndexError: there is no expert of such a number.
    """
    tokens, top_k = expert_ids.shape
    sizes = Sizes(tokens, top_k, len(second), second.outputs, second.inputs)
    x, ids, weights = x.contiguous(), expert_ids.contiguous(), weights.float().contiguous()
    biases = [None if b is None else b.float().contiguous() for b in (first_bias, second_bias)]
    given = torch.empty(ids.numel(), sizes.hidden, dtype=x.dtype)
    values = torch.empty(ids.numel(), sizes.inner, dtype=x.dtype)
    out = torch.empty_like(x)
    products = values.numel() * sizes.hidden
    is_quantised = any(isinstance(matrices, QuantisedMatrices) for matrices in (first, second))
    run = _run_quantised if is_quantised else _run
    known = run(
        *(x.data_ptr(), ids.data_ptr(), weights.data_ptr()),
        *(blocks_of(first, biases[0]), blocks_of(second, biases[1]), gate, sizes),
        *(given.data_ptr(), values.data_ptr(), out.data_ptr()),
        threads_for(products, SMALL),
    )
    if not known:
        raise IndexError(f"expert ids should be 0 .. {sizes.experts - 1}: {expert_ids}")
    return out


@inner
@no_type_check
def _gather(worker, workers, x, order, sizes, given):  # pragma: no cover  (compiled, as all below)
    """Puts a worker's share of what assignments' tokens have one behind the other, by expert."""
    for a in range(len(order) * worker // workers, len(order) * (worker + 1) // workers):
        token = order[a] // sizes.top_k
        row_bytes = 2 * sizes.hidden
        copy_bytes(x + token * row_bytes, given + a * row_bytes, row_bytes)


@inner
@no_type_check
def _place(gate, run, k):  # pragma: no cover
    """Of the k-th block of a run in memory: 0 for the gate's part, 1 for the other, and which."""
    if gate.kind == SQUARED_RELU:
        return 1, k
    return (k % 2, k // 2) if gate.by_turns else (k // run, k % run)


@inner
@no_type_check
def _number(gate, jobs, e, part, n):  # pragma: no cover
    """The number, among all experts' blocks, of expert e's for the n-th values and one part."""
    if gate.kind == SQUARED_RELU:
        return e * jobs + n
    return 2 * e * jobs + (2 * n + part if gate.by_turns else n + part * jobs)


@inner
@no_type_check
def _separate(sums, count):  # pragma: no cover
    """Puts sums that take turns into one half for gates and one for the others."""
    turns, half = np.empty((2, OUTPUTS), np.float32), OUTPUTS // 2
    for t in range(count):
        for i in range(OUTPUTS):
            turns[0, i], turns[1, i] = sums[0, t, i], sums[1, t, i]
        for part in range(2):
            for i in range(half):
                sums[0, t, half * part + i] = turns[part, 2 * i]
                sums[1, t, half * part + i] = turns[part, 2 * i + 1]


@inner
@no_type_check
def _multiply_run(
    tiles, e, first_of_run, run, then, a, count, given, rows, first, gate, sizes, sums, room
):  # fmt: skip  # pragma: no cover
    """Products of `count` assignments of expert e from the a-th on with a run of blocks.

    `then` is the number of the block that is needed next.
    """
    jobs, blocks = sizes.inner // OUTPUTS, run if gate.kind == SQUARED_RELU else 2 * run
    for k in range(blocks):
        part, n = _place(gate, run, k)
        following = then
        if k + 1 < blocks:
            next_part, next_n = _place(gate, run, k + 1)
            following = _number(gate, jobs, e, next_part, first_of_run + next_n)
        multiply_block(
            tiles, first, _number(gate, jobs, e, part, first_of_run + n), given, rows, a,
            sizes.hidden, count, sums[n, part], room, following
        )  # fmt: skip


@inner
@no_type_check
def _first(
    worker, workers, given, rows, first, gate, starts, active, sizes, values
):  # fmt: skip  # pragma: no cover
    """A worker's blocks of the values between the two products."""
    sums = aligned(RUN * 2 * LOT * OUTPUTS).reshape((RUN, 2, LOT, OUTPUTS))
    jobs, room, tiles = sizes.inner // OUTPUTS, make_room(first), take_tiles(first.tiles)
    begin, end = jobs * worker // workers, jobs * (worker + 1) // workers
    part = _place(gate, 1, 0)[0]
    for i in range(len(active)):
        e, next_expert = active[i], active[(i + 1) % len(active)]
        most = RUN if starts[e + 1] - starts[e] <= LOT else 1
        for n in range(begin, end, most):
            run = min(most, end - n)
            own = _number(gate, jobs, e, part, n)
            later = _number(gate, jobs, e, part, n + run)
            if n + run == end:
                later = _number(gate, jobs, next_expert, part, begin)
            for a in range(starts[e], starts[e + 1], LOT):
                count = min(LOT, starts[e + 1] - a)
                then = own if a + count < starts[e + 1] else later
                _multiply_run(
                    tiles, e, n, run, then, a, count, given, rows, first, gate, sizes, sums, room
                )  # fmt: skip
                for of_run in range(run):
                    if gate.by_turns:
                        _separate(sums[of_run], count)
                    gates = sums[of_run].ctypes.data
                    out = values + 2 * (a * sizes.inner + (n + of_run) * OUTPUTS)
                    apply_gate(
                        gate, gates, gates + 4 * LOT * OUTPUTS, OUTPUTS, out, sizes.inner, count,
                        OUTPUTS
                    )  # fmt: skip
    release_tiles(tiles)


@inner
@no_type_check
def _add_expert(
    tiles, e, n, then, values, rows, second, by_weight, order, starts, sizes, sums, room, total
):  # fmt: skip  # pragma: no cover
    """Adds what an expert gives for the n-th outputs to those of its tokens."""
    block = e * (sizes.hidden // OUTPUTS) + n
    for a in range(starts[e], starts[e + 1], LOT):
        count = min(LOT, starts[e + 1] - a)
        following = block if a + count < starts[e + 1] else then
        multiply_block(
            tiles, second, block, values, rows, a, sizes.inner, count, sums, room, following
        )  # fmt: skip
        for t in range(count):
            weight, token = by_weight[order[a + t]], order[a + t] // sizes.top_k
            for output in range(OUTPUTS):
                total[token, output] += weight * sums[t, output]


@inner
@no_type_check
def _second(
    worker, workers, values, rows, second, weights, order, starts, active, sizes, out
):  # fmt: skip  # pragma: no cover
    """A worker's blocks of the tokens' outputs: those of all experts, by weight."""
    jobs, tokens = sizes.hidden // OUTPUTS, sizes.tokens
    begin, end = jobs * worker // workers, jobs * (worker + 1) // workers
    most = max(1, min(end - begin, MOST_TOTALS // tokens))
    sums = aligned(LOT * OUTPUTS).reshape((LOT, OUTPUTS))
    totals = aligned(most * tokens * OUTPUTS).reshape((most, tokens, OUTPUTS))
    by_weight, room, tiles = (
        singles(weights, len(order)),
        make_room(second),
        take_tiles(second.tiles),
    )
    for n in range(begin, end, most):
        run = min(most, end - n)
        totals[:run] = 0
        for i in range(len(active)):
            after = n if i + 1 < len(active) else n + run  # as then all begin again
            later = active[(i + 1) % len(active)] * jobs + (after if after < end else begin)
            for of_run in range(run):
                own = active[i] * jobs + n + of_run
                _add_expert(
                    tiles, active[i], n + of_run, own + 1 if of_run + 1 < run else later, values,
                    rows, second, by_weight, order, starts, sizes, sums, room, totals[of_run]
                )  # fmt: skip
        for of_run in range(run):
            for token in range(tokens):
                place = out + 2 * (token * sizes.hidden + (n + of_run) * OUTPUTS)
                result = halves(place, OUTPUTS)
                for output in range(OUTPUTS):
                    result[output] = narrow(totals[of_run, token, output])
    release_tiles(tiles)


@inner
@no_type_check
def _active(starts, experts):  # pragma: no cover
    """The experts that have assignments."""
    active, count = np.empty(experts, np.int64), 0
    for e in range(experts):
        if starts[e + 1] > starts[e]:
            active[count] = e
            count += 1
    return active[:count]


@inner
@no_type_check
def _run_all(
    x, ids, weights, first, second, gate, sizes, given, values, out, threads
):  # fmt: skip  # pragma: no cover
    """Whether all experts are known; if not, nothing is computed."""
    order, starts = by_expert(ids, sizes)
    count = len(order)
    if count < sizes.tokens * sizes.top_k:
        return False
    active = _active(starts, sizes.experts)
    share(_gather, 1 if count * sizes.hidden < MUCH else threads, (x, order, sizes, given))
    rows = room_for_rows(first, sizes.hidden, count)
    share_each(make_row, threads, len(rows) and count, (first, given, sizes.hidden, rows))
    share(_first, threads, (given, rows, first, gate, starts, active, sizes, values))
    rows = room_for_rows(second, sizes.inner, count)
    share_each(make_row, threads, len(rows) and count, (second, values, sizes.inner, rows))
    share(_second, threads, (values, rows, second, weights, order, starts, active, sizes, out))
    return True


@sharing_kernel
@calls(add_products, spared=(add_quantised,))
@no_type_check
def _run(
    x, ids, weights, first, second, gate, sizes, given, values, out, threads
):  # fmt: skip  # pragma: no cover
    return _run_all(x, ids, weights, first, second, gate, sizes, given, values, out, threads)


@sharing_kernel
@calls(add_products, add_quantised)
@no_type_check
def _run_quantised(
    x, ids, weights, first, second, gate, sizes, given, values, out, threads
):  # fmt: skip  # pragma: no cover
    """Where some matrices have few bits: the others' first call doesn't wait for those products."""
    return _run_all(x, ids, weights, first, second, gate, sizes, given, values, out, threads)
