"""A chunk's queries attend to keys and values where they stand in their pages, in numba.

Nothing is brought into another order but the queries, some of which are taken at a time through
all tokens that they see. Tokens are taken from the sequence's first on, so that a result doesn't
depend on the chunk. Weights are relative to the largest score so far (arXiv 1805.02867).
"""

from typing import no_type_check

import numpy as np

from hybridrt.kernels.cpu.attend_jobs import MORE, find
from hybridrt.kernels.cpu.attend_tile import NOTHING, first_seen
from hybridrt.kernels.cpu.bfloat16 import short_integers, singles
from hybridrt.kernels.cpu.fours import FOUR
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.lane_tile import add_values, cap, hide, score, weigh
from hybridrt.kernels.cpu.share import share, sharing_kernel
from hybridrt.kernels.cpu.vectors import aligned, pointer

TOKENS = 64  # at a time: their scores stay in the nearest cache
PIECE = 16 * TOKENS  # tokens whose places are looked up at once


@inner
@no_type_check
def _work(
    worker, workers, q, k, more, v, table, position, queries, heads, sizes, scale, softcap, sinks,
    out
):  # fmt: skip  # pragma: no cover
    """Every job whose turn it is: some lanes of a key head."""
    group, size = heads // sizes.kv_heads, sizes.k + sizes.more
    parts = (queries * group + FOUR - 1) // FOUR
    of_lanes, scores, sums = aligned(size * FOUR), aligned(TOKENS * FOUR), aligned(sizes.v * FOUR)
    of_lanes[:] = 0
    tops, totals = np.empty(FOUR, np.float32), np.empty(FOUR, np.float32)
    kept = np.empty(FOUR, np.float32)
    first, stop = np.zeros(FOUR, np.int64), np.zeros(FOUR, np.int64)
    k_places, v_places = np.empty(PIECE + MORE, np.int64), np.empty(PIECE + MORE, np.int64)
    more_places = np.empty(PIECE + MORE, np.int64)
    block = sizes.block_size
    of_table = first_seen(position, sizes.window, sizes.chunked) // block * block
    for job in range(worker, sizes.kv_heads * parts, workers):
        # The last lanes see most, so they come first.
        kv_head, begin = job % sizes.kv_heads, (parts - 1 - job // sizes.kv_heads) * FOUR
        lanes = min(FOUR, queries * group - begin)
        totals[:], tops[:], sums[:] = 0, NOTHING, 0
        for lane in range(lanes):
            query, head = divmod(begin + lane, group)
            head += kv_head * group
            at = query * sizes.q_token + head * sizes.q_head
            for d in range(size):
                of_lanes[d * FOUR + lane] = q[at + d] * scale
            first[lane] = first_seen(position + query, sizes.window, sizes.chunked)
            stop[lane] = position + query + 1
            if len(sinks) > 0:
                totals[lane], tops[lane] = 1, sinks[head]
        of_queries, of_scores = pointer(of_lanes), pointer(scores)
        of_sums, of_kept = pointer(sums), pointer(kept)
        k_head, v_head = kv_head * sizes.k_head, kv_head * sizes.v_head
        start, end = first[0], first[0]
        while start < stop[lanes - 1]:
            if start == end:
                base, end = start, min(start // PIECE * PIECE + PIECE, stop[lanes - 1])
                place, some = start - of_table, end - start
                find(table, place, some, block, sizes.k_block, k_head, sizes.k_token, k_places)
                find(table, place, some, block, sizes.v_block, v_head, sizes.v_token, v_places)
                if sizes.more > 0:
                    more_token = sizes.more_token
                    find(table, place, some, block, sizes.more_block, 0, more_token, more_places)
            count, t = min(start // TOKENS * TOKENS + TOKENS, end) - start, start - base
            score(
                of_queries, k, k_places[t:], sizes.k, more, more_places[t:], sizes.more, v,
                v_places[t:], 0 if sizes.values_are_keys else sizes.v, count, end - start, of_scores
            )  # fmt: skip
            if softcap > 0:
                cap(scores, count * FOUR, softcap)
            if start + count > stop[0] or start < first[lanes - 1]:
                hide(scores, start, count, first, stop)
            weigh(of_scores, count, pointer(tops), pointer(totals), of_kept)
            add_values(of_scores, v, v_places[t:], sizes.v, count, of_kept, of_sums)
            start += count
        for lane in range(lanes):
            query, head = divmod(begin + lane, group)
            at = (query * heads + kv_head * group + head) * sizes.v
            share = np.float32(1) / totals[lane]
            for d in range(sizes.v):
                out[at + d] = sums[d * FOUR + lane] * share


@sharing_kernel
@no_type_check
def attend_lanes(
    q, k, more, v, table, position, queries, heads, sizes, scale, softcap, sinks, out, threads
):  # fmt: skip  # pragma: no cover
    """The queries of a row from `position` on into `out`: queries, heads and values in order.

    All of these are addresses, of float32 but for the row's page table of int32. A key is
    `[k, more]`, and so is a query. Without sinks, `sinks` is 0.
    """
    group, seen = heads // sizes.kv_heads, first_seen(position, sizes.window, sizes.chunked)
    blocks = (position + queries - 1) // sizes.block_size + 1 - seen // sizes.block_size
    table = short_integers(table, blocks)
    q, k, more, v = singles(q, 1), singles(k, 1), singles(more, 1), singles(v, 1)
    sinks = singles(sinks, heads if sinks != 0 else 0)
    out = singles(out, queries * heads * sizes.v)
    jobs = sizes.kv_heads * ((queries * group + FOUR - 1) // FOUR)
    workers = min(threads, jobs)
    given = (
        q, k, more, v, table, position, queries, heads, sizes, scale, softcap, sinks, out
    )  # fmt: skip
    share(_work, workers, given)
