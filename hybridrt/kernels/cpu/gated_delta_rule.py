"""gated_delta_rule in numba: the recurrence itself, on some columns of a head's state at a time.

Columns don't depend on each other. Those of a job stay in an L1 cache from a row's first token to
its last, in their page, so that memory is read and written once. All products are of vectors and
none is added for a chunk, so this takes less time than the matrix form, whose products are small.
"""

from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.delta_tokens import SCRATCH, one_token, some_columns, two_tokens
from hybridrt.kernels.cpu.flat import clear_padding, flat_bits, flat_rows, is_readable, row_starts
from hybridrt.kernels.cpu.fours import FOUR, load4, store4
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.vectors import LANES, load_some, pointer, prefetch, store_some
from hybridrt.kernels.reference.states import load_states, store_states


def gated_delta_rule(
    q: Float[Tensor, "tokens key_heads head_k_dim"],
    k: Float[Tensor, "tokens key_heads head_k_dim"],
    v: Float[Tensor, "tokens heads head_v_dim"],
    g: Float[Tensor, "tokens heads *head_k_dim"],
    beta: Float[Tensor, "tokens heads"],
    ssm_state: Float[Tensor, "pages heads head_k_dim head_v_dim"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float[Tensor, "tokens heads head_v_dim"]:
    """See `hybridrt.kernels.gated_delta_rule`."""
    y = torch.empty(v.shape, dtype=v.dtype)
    decay = torch.exp(g.float()).view(*beta.shape, -1)  # one a head, or one a key channel
    q, k, decay, beta = (part.float().contiguous() for part in (q, k, decay, beta))
    if v.stride()[1:] != (v.shape[2], 1) or not is_readable(v):
        v = v.contiguous()
    inputs = (q.numpy(), k.numpy(), flat_bits(v), v.stride(0), decay.numpy(), beta.numpy())
    rows = (batch.cu_seqlens_q, batch.has_initial_state, batch.follows)
    cu_seqlens, has_initial, follows = (part.numpy() for part in rows)
    out, threads = flat_bits(y), numba.get_num_threads()
    if ssm_state.dtype == torch.float32:
        of_rows = (cu_seqlens, has_initial, follows)
        starts = row_starts(ssm_state, pages, initial_pages)
        states = flat_rows(ssm_state)
        _scan(*inputs, v.shape[2], *of_rows, *starts, states, out, threads)  # pyright: ignore[reportCallIssue]
        clear_padding(y, len(pages), starts[1])
        return y
    for run in batch.turns:  # rounded where a row ends
        state = load_states(ssm_state, initial_pages, batch, run, torch.float32)
        places = np.arange(len(state)) * state[0].numel()
        given = np.ones(len(state), np.bool_)
        of_rows = (cu_seqlens[run.start : run.stop + 1], given, ~given, places, places)
        states = flat_rows(state)
        _scan(*inputs, v.shape[2], *of_rows, states, out, threads)  # pyright: ignore[reportCallIssue]
        store_states(ssm_state, pages[run], state)
    return y


SMALL = 200_000  # numbers of states that are changed: 10 us, not worth a second thread
FEW = 2  # tokens, for which a state isn't worth a copy
SEGMENT = 128  # tokens, of which all heads' inputs stay in a cache of all cores
AHEAD = 8  # tokens, from beginning to read one to using it


@inner
@no_type_check
def _fetch(of_token, size, stride, t, end, place):  # pragma: no cover  (compiled, as all below)
    """Begins to read two tokens' parts of a head; a CPU doesn't see what is so far apart come."""
    for token in range(t + AHEAD, min(t + AHEAD + 2, end)):
        for i in range(0, size, LANES):
            prefetch(of_token, token * stride + place + i)


@inner
@no_type_check
def _run(
    h, at, width, q, k, v, v_stride, decay, beta, v_dim, y, head, first, begin, end, scratch
):  # fmt: skip  # pragma: no cover
    """The tokens of a row, and the columns of a head from `first` on."""
    heads = beta.shape[1]
    key_heads, k_dim = k.shape[1:]
    count, of_decay = min(FOUR, v_dim - first), decay.shape[2]
    one_a_head, size = of_decay == 1, len(scratch) // SCRATCH
    key_head = head // (heads // key_heads)
    space, queries, keys, decays = pointer(scratch), pointer(q), pointer(k), pointer(decay)
    values, states, into = pointer(v), pointer(h), pointer(y)
    t = begin
    while t < end:
        _fetch(keys, k_dim, key_heads * k_dim, t, end, key_head * k_dim)
        _fetch(queries, k_dim, key_heads * k_dim, t, end, key_head * k_dim)
        _fetch(decays, of_decay, heads * of_decay, t, end, head * of_decay)
        _fetch(values, count, v_stride, t, end, head * v_dim + first)
        at_k, at_decay = (t * key_heads + key_head) * k_dim, (t * heads + head) * of_decay
        at_v, at_y = t * v_stride + head * v_dim + first, (t * heads + head) * v_dim + first
        if count == FOUR and t + 1 < end:
            two_tokens(
                states, at, width, queries, keys, at_k, at_k + key_heads * k_dim, decays, at_decay,
                at_decay + heads * of_decay, one_a_head, k_dim, size, space, values, at_v,
                at_v + v_stride, beta[t, head], beta[t + 1, head], into, at_y, at_y + heads * v_dim
            )  # fmt: skip
            t += 2
            continue
        if count == FOUR:
            one_token(
                states, at, width, queries, keys, at_k, decays, at_decay, one_a_head, k_dim, size,
                space, values, at_v, beta[t, head], into, at_y
            )  # fmt: skip
        else:
            some_columns(
                states, at, width, queries, keys, at_k, decays, at_decay, one_a_head, k_dim, size,
                space, values, at_v, beta[t, head], into, at_y, count
            )  # fmt: skip
        t += 1


@inner
@no_type_check
def _copy(of, at, width, into, at_into, width_into, k_dim, columns):  # pragma: no cover
    source, target = pointer(of), pointer(into)
    for i in range(k_dim):
        if columns == FOUR:
            store4(load4(source, at + i * width), target, at_into + i * width_into)
            continue
        for d in range(0, columns, LANES):
            count = min(LANES, columns - d)
            row = load_some(source, at + i * width + d, count)
            store_some(row, target, at_into + i * width_into + d, count)


@inner
@no_type_check
def _work(
    worker, workers, q, k, v, v_stride, decay, beta, v_dim, cu_seqlens, has_initial, follows,
    sources, targets, h, y
):  # fmt: skip  # pragma: no cover
    """The columns of heads whose turn it is, in all rows.

    A row that follows comes behind the one before, and finds what the same worker left there.
    """
    heads, k_dim = beta.shape[1], k.shape[2]
    blocks = (v_dim + FOUR - 1) // FOUR
    # In a page the rows of a state are so far apart that few of them fit into an L1 cache.
    near = np.empty(k_dim * FOUR, np.float32)
    scratch = np.empty(SCRATCH * (k_dim + LANES), np.float32)
    turn = np.int64(0)  # so that few heads of many rows are shared too
    for row in range(len(targets)):
        turn += 0 if follows[row] else heads * blocks
        for start in range(cu_seqlens[row], cu_seqlens[row + 1], SEGMENT):
            stop = min(start + SEGMENT, cu_seqlens[row + 1])
            is_first = start == cu_seqlens[row]
            source = sources[row] if is_first else targets[row]
            for job in range((worker + turn) % workers, heads * blocks, workers):
                head, block = divmod(job, blocks)
                first = block * FOUR
                count, column = min(FOUR, v_dim - first), head * k_dim * v_dim + first
                at = targets[row] + column
                is_new = is_first and not has_initial[row]
                if stop - start <= FEW and source == targets[row] and not is_new:
                    _run(
                        h,
                        at,
                        v_dim,
                        q,
                        k,
                        v,
                        v_stride,
                        decay,
                        beta,
                        v_dim,
                        y,
                        head,
                        first,
                        start,
                        stop,
                        scratch,
                    )
                    continue
                if is_new:
                    near[:] = 0
                else:
                    _copy(h, source + column, v_dim, near, 0, FOUR, k_dim, count)
                _run(
                    near,
                    0,
                    FOUR,
                    q,
                    k,
                    v,
                    v_stride,
                    decay,
                    beta,
                    v_dim,
                    y,
                    head,
                    first,
                    start,
                    stop,
                    scratch,
                )
                _copy(near, 0, FOUR, h, at, v_dim, k_dim, count)


@numba.njit(parallel=True, cache=True)
@no_type_check
def _scan(
    q, k, v, v_stride, decay, beta, v_dim, cu_seqlens, has_initial, follows, sources, targets, h, y,
    threads
):  # fmt: skip  # pragma: no cover
    if beta.size * k.shape[2] * v_dim < SMALL:
        _work(
            0, 1, q, k, v, v_stride, decay, beta, v_dim, cu_seqlens, has_initial, follows,
            sources, targets, h, y
        )  # fmt: skip
        return
    for worker in numba.prange(threads):
        _work(
            np.int64(worker), threads, q, k, v, v_stride, decay, beta, v_dim, cu_seqlens,
            has_initial, follows, sources, targets, h, y
        )  # fmt: skip
