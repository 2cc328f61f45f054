"""What `mla_project` does, by AMX, of bfloat16: latents are rounded to it too."""

from typing import no_type_check

import numpy as np
from jaxtyping import BFloat16
from torch import Tensor

from hybridrt.kernels.cpu.attend_amx import (
    STEP,
    begin_runs,
    by_head,
    find_runs,
    pack_queries,
    rooms_of,
    steps_of,
)
from hybridrt.kernels.cpu.attend_tile import TILE
from hybridrt.kernels.cpu.bfloat16 import copy_bytes, halves
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.mla_project import SMALL, multiples
from hybridrt.kernels.cpu.pair_order import side_by_side
from hybridrt.kernels.cpu.pairs import store_in_pairs
from hybridrt.kernels.cpu.share import share, sharing_kernel, threads_for
from hybridrt.kernels.cpu.tile_registers import ROWS, RUNS, release_tiles, take_tiles
from hybridrt.kernels.cpu.tiles import multiply_rows, multiply_runs
from hybridrt.kernels.cpu.vectors import (
    LANES,
    aligned,
    load,
    load_up_to,
    pointer,
    store,
    store_some,
)


def absorb(
    q_nope: BFloat16[Tensor, "rows heads nope_dim"],
    q_pe: BFloat16[Tensor, "rows heads rope_dim"],
    w_uk: BFloat16[Tensor, "heads nope_dim rank"],
) -> BFloat16[Tensor, "rows heads latent_dim"]:
    """Queries that can be compared with latents."""
    rows, heads, dim = q_nope.shape
    rank, rope_dim = w_uk.shape[2], q_pe.shape[2]
    q_nope, q_pe = (q if q.stride(2) == 1 else q.contiguous() for q in (q_nope, q_pe))
    out = q_nope.new_empty(rows, heads, rank + rope_dim)
    threads = threads_for(q_nope.numel() * rank, SMALL)
    _absorb(
        *(q_nope.data_ptr(), q_nope.stride(0), q_nope.stride(1), dim),
        *(q_pe.data_ptr(), q_pe.stride(0), q_pe.stride(1), rope_dim),
        *(w_uk.data_ptr(), w_uk.stride(0), w_uk.stride(1), rank),
        *(rows, heads, out.data_ptr(), threads),
    )
    return out


def expand_values(
    latent: BFloat16[Tensor, "rows heads rank"],
    w_uv: BFloat16[Tensor, "heads v_dim rank"],
    out: BFloat16[Tensor, "rows heads v_dim"],
) -> None:
    """Each head's value, of a latent that it attended to. `rank` is even, `out` has no gaps."""
    threads = threads_for(out.numel() * latent.shape[2], SMALL)
    _expand(
        *(latent.data_ptr(), *latent.shape, w_uv.data_ptr(), w_uv.stride(0), w_uv.stride(1)),
        *(out.data_ptr(), out.shape[2], threads),
    )


@inner
@no_type_check
def _write(sums, at, out, size):  # pragma: no cover  (compiled, as all below)
    """Some sums, rounded, to an address."""
    result = pointer(halves(out, size))
    for d in range(0, size, LANES):
        if d + LANES <= size:
            store(load(sums, at + d), result, d)
        else:
            store_some(load(sums, at + d), result, d, size - d)


@inner
@no_type_check
def _absorb_heads(
    worker, workers, q, q_row, q_head, dim, pe, pe_row, pe_head, pe_dim, w, w_head, w_row, rank,
    rows, heads, out
):  # fmt: skip  # pragma: no cover
    """The heads whose turn it is: their weights' rows are added, as values are.

    Meanwhile the rows that come next are read.
    """
    latent_dim, steps = rank + pe_dim, steps_of(rank)
    tiles, sums, room = take_tiles(True), aligned(steps * ROWS * STEP), aligned(steps * TILE * ROWS)
    weights, places = aligned(2 * ROWS * TILE), multiples(dim, w_row)
    all_runs, later_runs = np.empty(2 * RUNS, np.int64), np.empty(2 * RUNS, np.int64)
    jobs = heads * ((rows + ROWS - 1) // ROWS)
    for job in range(worker, jobs, workers):
        row, head = job // heads * ROWS, job % heads
        count, own = min(ROWS, rows - row), w + 2 * head * w_head
        # Pointers are taken here, as an array is given back after it was named last.
        of_places, runs, coming = pointer(places), pointer(all_runs), pointer(later_runs)
        paired, of_sums = pointer(weights), pointer(sums)
        for t in range(0, dim, TILE):
            tile, copies = min(TILE, dim - t), room.ctypes.data
            find_runs(own, of_places, t, t, tile, rank, w_row, dim, copies, runs)
            for g in range(count):
                given = pointer(halves(q + 2 * ((row + g) * q_row + head * q_head + t), tile))
                for d in range(0, tile, LANES):
                    numbers = load_up_to(given, d, tile - d)
                    store_in_pairs(numbers, paired, g * TILE + d, ROWS * TILE)
            later = later_runs.ctypes.data
            if t + TILE < dim:
                begin_runs(own, of_places, t + TILE, dim - t - TILE, w_row, coming)
            elif job + workers < jobs:
                then = w + 2 * ((job + workers) % heads) * w_head
                begin_runs(then, of_places, 0, dim, w_row, coming)
            else:
                later = 0
            multiply_rows(
                tiles, t == 0, all_runs.ctypes.data, tile, weights.ctypes.data, 4 * TILE,
                4 * ROWS * TILE, count, steps, sums.ctypes.data, later
            )  # fmt: skip
        for step in range(steps):
            for g in range(count):
                place = (step * ROWS + g) * STEP
                side_by_side(sums.ctypes.data + 4 * place)
                into = out + 2 * (((row + g) * heads + head) * latent_dim + step * STEP)
                _write(of_sums, place, into, min(STEP, rank - step * STEP))
        for g in range(row, row + count):
            rotated = pe + 2 * (g * pe_row + head * pe_head)
            into = out + 2 * ((g * heads + head) * latent_dim + rank)
            copy_bytes(rotated, into, 2 * pe_dim)
    release_tiles(tiles)


@sharing_kernel
@no_type_check
def _absorb(
    q, q_row, q_head, dim, pe, pe_row, pe_head, pe_dim, w, w_head, w_row, rank, rows, heads, out,
    threads
):  # fmt: skip  # pragma: no cover
    given = (
        q, q_row, q_head, dim, pe, pe_row, pe_head, pe_dim, w, w_head, w_row, rank, rows, heads,
        out
    )  # fmt: skip
    share(_absorb_heads, threads, given)


@inner
@no_type_check
def _expand_heads(
    worker, workers, latent, rows, heads, rank, w, w_head, w_row, out, v_dim
):  # fmt: skip  # pragma: no cover
    """The heads whose turn it is: latents are multiplied with weights' rows, as with keys."""
    tiles, rooms, scores = take_tiles(True), rooms_of(rank, 0, 0), aligned(ROWS * TILE)
    places, steps = multiples(v_dim + 1, w_row), steps_of(rank)
    runs, found, keys = pointer(rooms.runs), pointer(rooms.found), rooms.keys.ctypes.data
    for job in range(worker, heads * ((rows + ROWS - 1) // ROWS), workers):
        row, head = job // heads * ROWS, job % heads
        count = min(ROWS, rows - row)
        # Here, as an array is given back after it was named last.
        of_places, values = pointer(places), pointer(scores)
        pack_queries(latent, (row * heads + head) * rank, heads * rank, count, rank, 0, rooms)
        for v in range(0, v_dim, TILE):
            some, own = min(TILE, v_dim - v), w + 2 * head * w_head
            find_runs(own, of_places, v, v, some, rank, w_row, v_dim, keys, runs)
            queries = rooms.queries.ctypes.data
            multiply_runs(tiles, True, runs, queries, 1, steps, rooms.found.ctypes.data)
            by_head(found, count, some, np.float32(1), values)
            for g in range(count):
                into = out + 2 * (((row + g) * heads + head) * v_dim + v)
                _write(values, g * TILE, into, some)
    release_tiles(tiles)


@sharing_kernel
@no_type_check
def _expand(
    latent, rows, heads, rank, w, w_head, w_row, out, v_dim, threads
):  # fmt: skip  # pragma: no cover
    share(_expand_heads, threads, (latent, rows, heads, rank, w, w_head, w_row, out, v_dim))
