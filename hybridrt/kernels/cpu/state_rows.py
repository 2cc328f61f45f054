"""What kernels that change states are told of a step's rows, and of the pages of their states."""

from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cpu.bfloat16 import as_float, elements, integers, octets, short_integers
from hybridrt.kernels.cpu.jit import argument, inlined, inner


@argument
class StateRows(NamedTuple):
    """Addresses of what `Rows` says, and of page ids. Pages are `stride` elements apart."""

    num_rows: int
    cu_seqlens: int
    has_initial: int
    follows: int
    pages: int
    initial_pages: int
    stride: int

    @classmethod
    def of(
        cls,
        batch: Rows,
        cache: Float[Tensor, "  pages *state"],
        pages: Int64[Tensor, " rows"],
        initial_pages: Int64[Tensor, " rows"],
    ) -> "StateRows":
        """Of tensors without gaps, which whoever holds the addresses has to hold."""
        for ids in (pages, initial_pages):
            assert ids.dtype == torch.int64 and ids.is_contiguous(), "page ids are int64, in a row"
        return cls(
            num_rows=len(pages),
            cu_seqlens=batch.cu_seqlens_q.data_ptr(),
            has_initial=batch.has_initial_state.data_ptr(),
            follows=batch.follows.data_ptr(),
            pages=pages.data_ptr(),
            initial_pages=initial_pages.data_ptr(),
            stride=cache.stride(0),
        )


@inlined
@no_type_check
def starts(rows):  # pragma: no cover  (compiled, as all below)
    """Where each row's tokens begin, and where the last one's end."""
    return short_integers(rows.cu_seqlens, rows.num_rows + 1)


@inlined
@no_type_check
def has_initial(rows):  # pragma: no cover
    """Whether each row has a state to start from: 0 if not."""
    return octets(rows.has_initial, rows.num_rows)


@inlined
@no_type_check
def follows(rows):  # pragma: no cover
    """Whether each row goes on with what the one before it leaves: 0 if not."""
    return octets(rows.follows, rows.num_rows)


@inlined
@no_type_check
def targets(rows):  # pragma: no cover
    """The page in which each row leaves its state."""
    return integers(rows.pages, rows.num_rows)


@inlined
@no_type_check
def sources(rows):  # pragma: no cover
    """The page with the state that each row starts from."""
    return integers(rows.initial_pages, rows.num_rows)


@inlined
@no_type_check
def live(rows):  # pragma: no cover
    """How many rows are no padding, which comes last."""
    pages, count = integers(rows.pages, rows.num_rows), rows.num_rows
    while count > 0 and pages[count - 1] < 0:
        count -= 1
    return count


@inner
@no_type_check
def row_starts(rows):  # pragma: no cover
    """The rows that follow none, and how many rows there are: those in between go on with them."""
    goes_on, count = follows(rows), live(rows)
    found, begins = 0, np.empty(count + 1, np.int64)
    for row in range(count):
        if not goes_on[row]:
            begins[found] = row
            found += 1
    begins[found] = count
    return begins[: found + 1]


@inlined
@no_type_check
def clear_padding(rows, out, token_bytes):  # pragma: no cover
    """Zeros for the tokens of rows that are padding."""
    tokens, count = starts(rows), live(rows)
    if count < rows.num_rows:
        padding = tokens[rows.num_rows] - tokens[count]
        octets(out + token_bytes * tokens[count], token_bytes * padding)[:] = 0


@inlined
@no_type_check
def begin_state(h, rows, row, states, like, head, size):  # pragma: no cover
    """Writes what a head's state of float32 begins a row with; `h` may be where it ends the row."""
    source, in_place = sources(rows)[row], like.itemsize == 4
    if not has_initial(rows)[row]:
        h[:size] = 0
    elif source != targets(rows)[row] or not in_place:
        start = states + like.itemsize * (source * rows.stride + head * size)
        kept_there = elements(start, size, like)
        for n in range(size):
            h[n] = as_float(kept_there[n])
