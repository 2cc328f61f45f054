"""What `mla_project` does, of bfloat16, which is widened by pairs, as `attend_pairs` widens it.

A weight's rows are to a head's queries, or latents, what tokens are to `attend`: values that are
added, or keys that give a score. While some of them are multiplied the next are read from memory.
"""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import BFloat16, Float
from torch import Tensor

from hybridrt.kernels.cpu.attend_join import write
from hybridrt.kernels.cpu.attend_pairs import (
    OF_WIDENED,
    STEP,
    add_tile,
    join_pairs,
    score_tile,
    split,
    width_of,
)
from hybridrt.kernels.cpu.attend_tile import TILE
from hybridrt.kernels.cpu.bfloat16 import elements, halves, narrow, of_dtype, widen
from hybridrt.kernels.cpu.jit import calls, inner
from hybridrt.kernels.cpu.mla_project import ROWS, SMALL, multiples
from hybridrt.kernels.cpu.pairs import BY_PAIRS
from hybridrt.kernels.cpu.share import share, sharing_kernel, threads_for
from hybridrt.kernels.cpu.vectors import LANES, aligned, load_up_to, pointer, store_up_to

SPARE = max(OF_WIDENED)  # places behind a tile's last row, for those who take several at once

ABSORBED = torch.bfloat16 if BY_PAIRS else torch.float32
"""What absorbed queries are: where `attend` multiplies by pairs, those that it takes."""


def absorb(
    q_nope: BFloat16[Tensor, "rows heads nope_dim"],
    q_pe: BFloat16[Tensor, "rows heads rope_dim"],
    w_uk: BFloat16[Tensor, "heads nope_dim rank"],
) -> Float[Tensor, "rows heads latent_dim"]:
    """Queries that can be compared with latents, in `ABSORBED`."""
    rows, heads, dim = q_nope.shape
    rank, rope_dim = w_uk.shape[2], q_pe.shape[2]
    q_nope, q_pe = (q if q.stride(2) == 1 else q.contiguous() for q in (q_nope, q_pe))
    out = torch.empty(rows, heads, rank + rope_dim, dtype=ABSORBED)
    threads = threads_for(q_nope.numel() * rank, SMALL)
    _absorb(
        *(q_nope.data_ptr(), q_nope.stride(0), q_nope.stride(1), dim),
        *(q_pe.data_ptr(), q_pe.stride(0), q_pe.stride(1), rope_dim),
        *(w_uk.data_ptr(), w_uk.stride(0), w_uk.stride(1), rank),
        *(rows, heads, of_dtype(out), out.data_ptr(), threads),
    )
    return out


def expand_values(
    latent: Float[Tensor, "rows heads rank"],
    w_uv: BFloat16[Tensor, "heads v_dim rank"],
    out: BFloat16[Tensor, "rows heads v_dim"],
) -> None:
    """Each head's value, of a latent that it attended to. Neither `latent` nor `out` has gaps."""
    threads = threads_for(out.numel() * latent.shape[2], SMALL)
    _expand(
        *(of_dtype(latent), latent.data_ptr(), *latent.shape),
        *(w_uv.data_ptr(), w_uv.stride(0), w_uv.stride(1)),
        *(out.data_ptr(), out.shape[2], threads),
    )


@inner
@no_type_check
def _leap(first, dim, head, end, head_stride, row_stride):  # pragma: no cover  (compiled, as all)
    """Bytes from a tile of a head's rows to the one that this worker needs next."""
    if first + STEP < dim:
        return 2 * STEP * row_stride
    return 2 * (head_stride - first * row_stride) if head + 1 < end else 0


@inner
@no_type_check
def _absorb_heads(
    worker, workers, q, q_row, q_head, dim, pe, pe_row, pe_head, pe_dim, w, w_head, w_row, rank,
    rows, heads, found
):  # fmt: skip  # pragma: no cover
    """A worker's share of the heads, which are neighbours: so their weights are, too."""
    width, most = width_of(rank), min(rows, ROWS)
    sums, weights, kept = aligned(most * width), aligned(most * TILE), np.ones(most, np.float32)
    places = multiples(STEP, w_row)
    begin, end = heads * worker // workers, heads * (worker + 1) // workers
    for job in range((end - begin) * ((rows + most - 1) // most)):
        head, row = begin + job % (end - begin), job // (end - begin) * most
        count = min(most, rows - row)
        sums[:] = 0
        for first in range(0, dim, STEP):
            some = min(STEP, dim - first)
            for g in range(count):
                given = halves(q + 2 * ((row + g) * q_row + head * q_head + first), some)
                for n in range(some):
                    weights[g * TILE + n] = widen(given[n])
            add_tile(
                0, count, rank, weights.ctypes.data, kept.ctypes.data,
                w + 2 * (head * w_head + first * w_row), places.ctypes.data, some, 0,
                _leap(first, dim, head, end, w_head, w_row), sums.ctypes.data, 4 * width
            )  # fmt: skip
        join_pairs(sums, count, width)
        for g in range(count):
            place = (rank + pe_dim) * ((row + g) * heads + head)
            write(pointer(sums), g * width, np.float32(1), pointer(found), place, rank)
            given = pointer(halves(pe + 2 * ((row + g) * pe_row + head * pe_head), pe_dim))
            for d in range(0, pe_dim, LANES):
                numbers = load_up_to(given, d, pe_dim - d)
                store_up_to(numbers, pointer(found), place + rank + d, pe_dim - d)


@sharing_kernel
@calls(add_tile)
@no_type_check
def _absorb(
    q, q_row, q_head, dim, pe, pe_row, pe_head, pe_dim, w, w_head, w_row, rank, rows, heads, like,
    out, threads
):  # fmt: skip  # pragma: no cover
    found = elements(out, rows * heads * (rank + pe_dim), like)
    given = (
        q, q_row, q_head, dim, pe, pe_row, pe_head, pe_dim, w, w_head, w_row, rank, rows, heads,
        found
    )  # fmt: skip
    share(_absorb_heads, threads, given)


@inner
@no_type_check
def _expand_heads(
    worker, workers, given, rows, heads, rank, w, w_head, w_row, out, v_dim
):  # fmt: skip  # pragma: no cover
    """A worker's share of the heads."""
    width, most = width_of(rank), min(rows, ROWS)
    queries, scores = aligned(most * width), aligned(most * TILE)
    places = np.empty(STEP + SPARE, np.int64)
    begin, end = heads * worker // workers, heads * (worker + 1) // workers
    for job in range((end - begin) * ((rows + most - 1) // most)):
        head, row = begin + job % (end - begin), job // (end - begin) * most
        count = min(most, rows - row)
        for g in range(count):
            at = ((row + g) * heads + head) * rank
            split(given, at, rank, np.float32(1), queries, g * width)
        for first in range(0, v_dim, STEP):
            some = min(STEP, v_dim - first)
            for n in range(len(places)):
                places[n] = min(n, some - 1) * w_row
            score_tile(
                0, count, queries.ctypes.data, 4 * width, w + 2 * (head * w_head + first * w_row),
                places.ctypes.data, rank, 0, places.ctypes.data, 0, some, 0,
                _leap(first, v_dim, head, end, w_head, w_row), scores.ctypes.data
            )  # fmt: skip
            for g in range(count):
                found = halves(out + 2 * (((row + g) * heads + head) * v_dim + first), some)
                for n in range(some):
                    found[n] = narrow(scores[g * TILE + n])


@sharing_kernel
@calls(score_tile)
@no_type_check
def _expand(
    like, latent, rows, heads, rank, w, w_head, w_row, out, v_dim, threads
):  # fmt: skip  # pragma: no cover
    given = elements(latent, rows * heads * rank, like)
    share(_expand_heads, threads, (given, rows, heads, rank, w, w_head, w_row, out, v_dim))
