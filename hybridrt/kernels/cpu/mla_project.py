"""Takes queries to the latents of MLA, and latents to values, for a few tokens.

Each weight is read once, in its own dtype, and multiplied in float32. Where all is bfloat16 there
are `mla_project_pairs` and `mla_project_amx`.
"""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.kernels.cpu.attend_tile import TILE, add_values, score
from hybridrt.kernels.cpu.bfloat16 import elements, of_dtype, singles
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.share import share, sharing_kernel, threads_for
from hybridrt.kernels.cpu.vectors import LANES, aligned, load, pointer, store, store_some

ROWS = 16  # at once: their sums stay in the nearest caches
SMALL = 100_000  # products whose weights one thread reads in some 10 us


def absorb(
    q_nope: Float[Tensor, "rows heads nope_dim"],
    q_pe: Float[Tensor, "rows heads rope_dim"],
    w_uk: Float[Tensor, "heads nope_dim rank"],
) -> Float[Tensor, "rows heads latent_dim"]:
    """Queries that can be compared with latents, in float32."""
    rows, heads, _ = q_nope.shape
    rank = w_uk.shape[2]
    out = torch.empty(rows, heads, rank + q_pe.shape[2], dtype=torch.float32)
    out[:, :, rank:] = q_pe
    q = q_nope.float().contiguous()
    threads = threads_for(q.numel() * rank, SMALL)
    _absorb(
        *(q.data_ptr(), *q.shape, of_dtype(w_uk), w_uk.data_ptr(), w_uk.stride(0), w_uk.stride(1)),
        *(rank, out.data_ptr(), out.shape[2], threads),
    )
    return out


def expand_values(
    latent: Float[Tensor, "rows heads rank"],
    w_uv: Float[Tensor, "heads v_dim rank"],
    out: Float[Tensor, "rows heads v_dim"],
) -> None:
    """Each head's value, of a latent that it attended to. `out` has no gaps."""
    threads = threads_for(out.numel() * latent.shape[2], SMALL)
    _expand(
        *(latent.data_ptr(), *latent.shape, of_dtype(w_uv), w_uv.data_ptr()),
        *(w_uv.stride(0), w_uv.stride(1), out.shape[2], of_dtype(out), out.data_ptr(), threads),
    )


@inner
@no_type_check
def multiples(count, step):  # pragma: no cover  (compiled, as all below)
    """Where `count` rows begin, of which each lies a `step` behind the one before."""
    places = np.empty(count, np.int64)
    for i in range(count):
        places[i] = i * step
    return places


@inner
@no_type_check
def _absorb_some(q, w, head, begin, row_stride, rank, out, row, count):  # pragma: no cover
    """Some rows of a head, whose weights begin at `begin`."""
    width = (rank + LANES - 1) // LANES * LANES
    sums, weights = aligned(count * width), np.empty(count * TILE, np.float32)
    sums[:] = 0
    places, kept = np.empty(TILE, np.int64), np.ones(count, np.float32)
    line = 64 // w.itemsize
    for first in range(0, q.shape[2], TILE):
        size = min(TILE, q.shape[2] - first)
        for n in range(size):
            places[n] = begin + (first + n) * row_stride
            for g in range(count):
                weights[g * TILE + n] = q[row + g, head, first + n]
        add_values(
            pointer(weights), count, pointer(w), pointer(places), rank, size, pointer(kept),
            pointer(sums), width, size, line
        )  # fmt: skip
    for g in range(count):
        for c in range(rank):
            out[row + g, head, c] = sums[g * width + c]


@inner
@no_type_check
def _absorb_heads(
    worker, workers, q, w, head_stride, row_stride, rank, out
):  # fmt: skip  # pragma: no cover
    """The heads whose turn it is."""
    rows, heads = q.shape[:2]
    for head in range(worker, heads, workers):
        for row in range(0, rows, ROWS):
            count, begin = min(ROWS, rows - row), head * head_stride
            _absorb_some(q, w, head, begin, row_stride, rank, out, row, count)


@sharing_kernel
@no_type_check
def _absorb(
    q, rows, heads, dim, like, w, head_stride, row_stride, rank, out, latent_dim, threads
):  # fmt: skip  # pragma: no cover
    q, w = singles(q, rows * heads * dim).reshape((rows, heads, dim)), elements(w, 1, like)
    out = singles(out, rows * heads * latent_dim).reshape((rows, heads, latent_dim))
    share(_absorb_heads, threads, (q, w, head_stride, row_stride, rank, out))


@inner
@no_type_check
def _expand_some(latent, w, head, begin, row_stride, v_dim, out, row, count):  # pragma: no cover
    """Some rows of a head, whose weights begin at `begin`."""
    heads, rank = latent.shape[1:]
    width = (rank + LANES - 1) // LANES * LANES
    queries, values = aligned(count * width), np.empty(count * TILE, np.float32)
    queries[:] = 0
    places, line = np.empty(TILE, np.int64), 64 // w.itemsize
    for g in range(count):
        for c in range(rank):
            queries[g * width + c] = latent[row + g, head, c]
    for first in range(0, v_dim, TILE):
        # Here, as an array is given back after it was named last.
        found, into = pointer(values), pointer(out)
        size = min(TILE, v_dim - first)
        for v in range((size + 3) // 4 * 4):
            places[v] = begin + (first + min(v, size - 1)) * row_stride
        score(
            pointer(queries), count, width, size, pointer(w), pointer(places), rank, pointer(w),
            pointer(places), 0, found, size, line
        )  # fmt: skip
        for g in range(count):
            place = ((row + g) * heads + head) * v_dim + first
            for v in range(0, size, LANES):
                part = load(found, g * TILE + v)
                if v + LANES <= size:
                    store(part, into, place + v)
                else:
                    store_some(part, into, place + v, size - v)


@inner
@no_type_check
def _expand_heads(
    worker, workers, latent, w, head_stride, row_stride, v_dim, out
):  # fmt: skip  # pragma: no cover
    """The heads whose turn it is."""
    rows, heads = latent.shape[:2]
    for head in range(worker, heads, workers):
        for row in range(0, rows, ROWS):
            count, begin = min(ROWS, rows - row), head * head_stride
            _expand_some(latent, w, head, begin, row_stride, v_dim, out, row, count)


@sharing_kernel
@no_type_check
def _expand(
    latent, rows, heads, rank, like, w, head_stride, row_stride, v_dim, out_like, out, threads
):  # fmt: skip  # pragma: no cover
    latent = singles(latent, rows * heads * rank).reshape((rows, heads, rank))
    w, out = elements(w, 1, like), elements(out, 1, out_like)
    share(_expand_heads, threads, (latent, w, head_stride, row_stride, v_dim, out))
