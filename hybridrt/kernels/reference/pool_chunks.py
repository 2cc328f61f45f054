"""pool_chunks in plain torch: reads the chunks that end in a step, and weighs their tokens."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.gather import Reach, blocks_for, gather_row


def pool_chunks(
    inputs: Float[Tensor, "blocks block_size twice_width"],
    bias: Float32[Tensor, "rate width"],
    pages: TokenPages,
    batch: Rows,
    overlaps: bool,
) -> Float[Tensor, "tokens dim"]:
    """See `hybridrt.kernels.pool_chunks`."""
    rate, width = bias.shape
    reach = Reach(2 * rate) if overlaps else Reach(rate, chunked=True)
    out = inputs.new_zeros(pages.slots.shape[0], width // 2 if overlaps else width)
    for row in _rows(batch):
        # Of the chunks that end in this row; and with an overlap of the one before them.
        first, stop = (n // rate * rate for n in (row.context, row.context + row.stop - row.start))
        if first == stop:
            continue
        begins = first - rate if overlaps and first else first
        found = _read(inputs, pages, row, reach, slice(begins, stop)).float()
        values, gates = found.unflatten(0, (-1, rate)).chunk(2, dim=-1)
        gates = gates + bias
        if overlaps:
            values = _with_the_last(values, 0.0, is_first=begins == first)
            gates = _with_the_last(gates, -torch.inf, is_first=begins == first)
        pooled = (values * gates.softmax(1)).sum(1)
        out[row.start + first + rate - 1 - row.context : row.stop : rate] = pooled.to(out.dtype)
    return out


def _rows(batch: Rows) -> Iterator[Prefill]:
    """All rows, decodes as rows of one token."""
    for row, context in enumerate(batch.context_lens.numpy()[: batch.num_decodes].tolist()):
        yield Prefill(row, row, row + 1, context)
    yield from batch.prefills


def _read(
    inputs: Float[Tensor, "blocks block_size twice_width"],
    pages: TokenPages,
    row: Prefill,
    reach: Reach,
    positions: slice,
) -> Float[Tensor, "tokens twice_width"]:
    """What is cached at these positions of a row's sequence."""
    size = inputs.shape[1]
    begin = reach.first_visible(row.context) // size * size
    blocks = pages.page_table[row.row, : blocks_for(positions.stop - begin, size)]
    return gather_row(
        inputs[:, None], blocks, slice(positions.start - begin, positions.stop - begin)
    )[0]


def _with_the_last(
    chunks: Float[Tensor, "chunks rate width"], filling: float, *, is_first: bool
) -> Float[Tensor, "chunks_ended twice_rate dim"]:
    """The first half of what the chunk before has, then the second half of what each has.

    `filling` stands for the chunk before a sequence's first.
    """
    before, own = chunks.chunk(2, dim=-1)
    if is_first:
        before = torch.cat([torch.full_like(before[:1], filling), before])
    else:
        own = own[1:]
    return torch.cat([before[:-1], own], dim=1)
