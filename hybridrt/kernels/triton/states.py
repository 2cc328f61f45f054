"""Which rows run at once, and where each finds and leaves its state."""

from collections.abc import Iterator
from typing import no_type_check

import triton.language as tl

from hybridrt.batch import Rows
from hybridrt.kernels.triton.launch import jit


def prefill_turns(batch: Rows) -> Iterator[tuple[int, int, int]]:
    """Runs of prefill rows in which none follows another: the first, how many, the longest.

    A launch for each: one launch sees what those before it have left.
    """
    if batch.num_decodes == batch.num_rows:
        return
    for turn in batch.turns:
        first = max(turn.start, batch.num_decodes)
        if first < turn.stop:
            longest = int(batch.query_lens[first : turn.stop].max())
            yield first, turn.stop - first, longest


@jit
@no_type_check
def tokens_of(row, cu_seqlens, IS_DECODE: tl.constexpr):
    """The row's first token, and the one behind its last. Decode rows have one each, in order."""
    if IS_DECODE:
        return row, row + 1
    else:
        start, stop = tl.load(cu_seqlens + row), tl.load(cu_seqlens + row + 1)
        return start.to(tl.int64), stop.to(tl.int64)


@jit
@no_type_check
def pages_of(row, pages, initial_pages, has_initial_state, IS_DECODE: tl.constexpr):
    """The page of the state that the row starts from, and of the one it leaves; -1 is none."""
    page = tl.load(pages + row).to(tl.int64)
    if IS_DECODE:
        return page, page
    else:
        initial = tl.load(initial_pages + row).to(tl.int64)
        return tl.where(tl.load(has_initial_state + row).to(tl.int32) != 0, initial, -1), page


@jit
@no_type_check
def if_so(condition, count):
    """`count`, or 0: masks are made by a limit, as the interpreter makes no mask of a scalar."""
    return tl.where(condition, count, 0)
