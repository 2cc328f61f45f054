"""gated_delta_rule in numba: the recurrence itself, on some columns of a head's state at a time.

Columns don't depend on each other. Those of a job stay in an L1 cache from a row's first token to
its last, in their page, so that memory is read and written once. All products are of vectors and
none is added for a chunk, so this takes less time than the matrix form, whose products are small.
"""

from typing import NamedTuple, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.bfloat16 import elements, is_readable, of_dtype, singles
from hybridrt.kernels.cpu.delta_tokens import (
    EIGHT,
    SCRATCH,
    one_token,
    one_token_of_eight,
    some_columns,
    two_tokens,
)
from hybridrt.kernels.cpu.fours import FOUR, load4, store4
from hybridrt.kernels.cpu.jit import argument, inner
from hybridrt.kernels.cpu.share import jobs_of, share, sharing_kernel, threads_for
from hybridrt.kernels.cpu.state_rows import (
    StateRows,
    clear_padding,
    follows,
    has_initial,
    live,
    sources,
    starts,
    targets,
)
from hybridrt.kernels.cpu.vector_math import exp
from hybridrt.kernels.cpu.vectors import (
    LANES,
    aligned,
    load_some,
    load_up_to,
    pointer,
    prefetch,
    store_some,
    store_up_to,
)
from hybridrt.kernels.reference.states import load_states, store_states


@argument
class Sizes(NamedTuple):
    """Of what stands in a token. `decays` of a head: one, or one for each channel of a key."""

    tokens: int
    key_heads: int
    k_dim: int
    heads: int
    v_dim: int
    decays: int


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
    q, k, g, beta = (part.float().contiguous() for part in (q, k, g, beta))
    decay = torch.empty_like(g)
    if v.stride()[1:] != (v.shape[2], 1) or not is_readable(v):
        v = v.contiguous()
    tokens, key_heads, k_dim = q.shape
    heads, v_dim = v.shape[1:]
    sizes = Sizes(tokens, key_heads, k_dim, heads, v_dim, 1 if g.ndim == 2 else k_dim)
    out, threads = y.data_ptr(), numba.get_num_threads()
    _fade(g.data_ptr(), decay.data_ptr(), g.numel(), threads_for(g.numel()))
    inputs = (
        *(q.data_ptr(), k.data_ptr(), of_dtype(v), v.data_ptr(), v.stride(0)),
        *(decay.data_ptr(), beta.data_ptr(), sizes),
    )
    if ssm_state.dtype == torch.float32:
        rows = StateRows.of(batch, ssm_state, pages, initial_pages)
        _scan(*inputs, rows, ssm_state.data_ptr(), out, threads)
        return y
    for run in batch.turns:  # rounded where a row ends
        state = load_states(ssm_state, initial_pages, batch, run, torch.float32)
        numbers, given = torch.arange(len(state)), torch.ones(len(state), dtype=torch.bool)
        apart = torch.zeros_like(given)
        rows = StateRows(
            num_rows=len(state),
            cu_seqlens=batch.cu_seqlens_q[run.start :].data_ptr(),
            has_initial=given.data_ptr(),
            follows=apart.data_ptr(),
            pages=numbers.data_ptr(),
            initial_pages=numbers.data_ptr(),
            stride=state.stride(0),
        )
        _scan(*inputs, rows, state.data_ptr(), out, threads)
        store_states(ssm_state, pages[run], state)
    return y


SMALL = 200_000  # numbers of states that are changed: 10 us, not worth a second thread
FEW = 2  # tokens, for which a state isn't worth a copy
SEGMENT = 128  # tokens, of which all heads' inputs stay in a cache of all cores
AHEAD = 8  # tokens, from beginning to read one to using it


@inner
@no_type_check
def _exp(worker, workers, g, decay, count):  # pragma: no cover  (compiled, as all below)
    begin, end = jobs_of(worker, workers, count)
    for i in range(begin, end, LANES):
        store_up_to(exp(load_up_to(g, i, end - i)), decay, i, end - i)


@sharing_kernel
@no_type_check
def _fade(g, decay, count, threads):  # pragma: no cover
    """What is left of a state: exp of its logarithm, of one a head or one a key channel."""
    g, decay = pointer(singles(g, count)), pointer(singles(decay, count))
    share(_exp, threads, (g, decay, count))


@inner
@no_type_check
def _fetch(of_token, size, stride, t, end, place):  # pragma: no cover
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
def _run_one(
    h, at, following, q, k, v, v_stride, decay, beta, v_dim, y, head, first, t, scratch
):  # fmt: skip  # pragma: no cover
    """A token, and `EIGHT` columns of a head from `first` on, in their page."""
    (key_heads, k_dim), (heads, of_decay) = k.shape[1:], decay.shape[1:]
    at_k = (t * key_heads + head // (heads // key_heads)) * k_dim
    one_token_of_eight(
        pointer(h), at, following, v_dim, pointer(q), pointer(k), at_k, pointer(decay),
        (t * heads + head) * of_decay, of_decay == 1, k_dim, len(scratch) // SCRATCH,
        pointer(scratch), pointer(v), t * v_stride + head * v_dim + first, beta[t, head],
        pointer(y), (t * heads + head) * v_dim + first
    )  # fmt: skip


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
    worker, workers, q, k, like, v, v_stride, decay, beta, sizes, rows, h, y
):  # fmt: skip  # pragma: no cover
    """The columns of heads whose turn it is, in all rows.

    A row that follows comes behind the one before, and finds what the same worker left there.
    """
    tokens, key_heads, k_dim, heads, v_dim, decays = sizes
    blocks = (v_dim + FOUR - 1) // FOUR
    jobs = heads * blocks
    q = singles(q, tokens * key_heads * k_dim).reshape((tokens, key_heads, k_dim))
    k = singles(k, tokens * key_heads * k_dim).reshape((tokens, key_heads, k_dim))
    decay = singles(decay, tokens * heads * decays).reshape((tokens, heads, decays))
    beta = singles(beta, tokens * heads).reshape((tokens, heads))
    v, h, y = elements(v, 1, like), singles(h, 1), elements(y, 1, like)
    begins, given, goes_on = starts(rows), has_initial(rows), follows(rows)
    from_page, to_page = sources(rows), targets(rows)
    # In a page the rows of a state are so far apart that few of them fit into an L1 cache.
    near, scratch = aligned(k_dim * FOUR), aligned(SCRATCH * (k_dim + LANES))
    turn = np.int64(0)  # so that few heads of many rows are shared too
    for row in range(live(rows)):
        turn += 0 if goes_on[row] else jobs
        target = to_page[row] * rows.stride
        for start in range(begins[row], begins[row + 1], SEGMENT):
            stop = min(start + SEGMENT, begins[row + 1])
            is_first = start == begins[row]
            source = from_page[row] * rows.stride if is_first else target
            job, last = jobs_of((worker + turn) % workers, workers, jobs)
            while job < last:
                head, block = divmod(job, blocks)
                first = block * FOUR
                count, column = min(FOUR, v_dim - first), head * k_dim * v_dim + first
                at = target + column
                is_new = is_first and not given[row]
                job += 1
                if stop - start <= FEW and source == target and not is_new:
                    if stop - start == 1 and job < last and first + EIGHT <= v_dim:
                        job += 1
                        following = at + EIGHT if block + 2 < blocks else at + k_dim * v_dim - first
                        _run_one(
                            h, at, following, q, k, v, v_stride, decay, beta, v_dim, y, head, first,
                            start, scratch
                        )  # fmt: skip
                        continue
                    _run(
                        h, at, v_dim, q, k, v, v_stride, decay, beta, v_dim, y, head, first, start,
                        stop, scratch
                    )  # fmt: skip
                    continue
                if is_new:
                    near[:] = 0
                else:
                    _copy(h, source + column, v_dim, near, 0, FOUR, k_dim, count)
                _run(
                    near, 0, FOUR, q, k, v, v_stride, decay, beta, v_dim, y, head, first, start,
                    stop, scratch
                )  # fmt: skip
                _copy(near, 0, FOUR, h, at, v_dim, k_dim, count)


@sharing_kernel
@no_type_check
def _scan(
    q, k, like, v, v_stride, decay, beta, sizes, rows, h, y, threads
):  # fmt: skip  # pragma: no cover
    clear_padding(rows, y, like.itemsize * sizes.heads * sizes.v_dim)
    products = sizes.tokens * sizes.heads * sizes.k_dim * sizes.v_dim
    given = q, k, like, v, v_stride, decay, beta, sizes, rows, h, y
    share(_work, 1 if products < SMALL else threads, given)
