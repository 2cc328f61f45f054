"""Reads the tokens of sequences out of their pages."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int32, Int64, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a token sees: `window` tokens, itself included, or its own chunk, or all.

    What a page table of a window group begins with follows from it, so it is computed here
    as `hybridrt.cache.spec.Window` computes it.
    """

    window: int | None = None
    chunked: bool = False

    def first_visible(self, position: int) -> int:
        """The first token that the one at `position` sees."""
        if self.window is None:
            return 0
        if self.chunked:
            return position // self.window * self.window
        return max(0, position - self.window + 1)

    def first_visible_of(self, positions: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """The same of many, where there is a window."""
        assert self.window is not None
        if self.chunked:
            return positions // self.window * self.window
        return (positions - self.window + 1).clamp(min=0)


EVERYTHING = Reach()


@dataclass(frozen=True, slots=True)
class Places:
    """The tokens that decode rows see, among the `count` places of their kernel blocks.

    Place 0 is the first token of a row's first block. Every row sees the places
    `common[0]:common[1]`; for the others `valid` tells. Both are known without asking the
    device.
    """

    table: Int32[Tensor, "rows blocks"]
    valid: Bool[Tensor, "rows count"]
    count: int
    common: tuple[int, int]

    @property
    def mask(self) -> Bool[Tensor, "rows count"] | None:
        """`valid`, or None if every row sees every place."""
        return None if self.common == (0, self.count) else self.valid


def decode_places(
    pages: TokenPages, batch: Rows, block_size: int, reach: Reach = EVERYTHING
) -> Places:
    """What the decode rows of a batch see. The new token is the last of it."""
    rows = batch.num_decodes
    if reach.window is None:  # the plain case in fewer steps: a table begins with token 0
        lens = batch.context_lens.numpy()[:rows]
        count, common = int(lens.max()) + 1, (0, int(lens.min()) + 1)
        valid = torch.arange(count, device=batch.seq_lens.device) < batch.seq_lens[:rows, None]
    else:
        first, stop = _seen(batch.context_lens[:rows], block_size, reach)
        count, common = int(stop.max()), (int(first.max()), int(stop.min()))
        if pages.page_table.is_cuda:
            first, stop = _seen(batch.seq_lens[:rows] - 1, block_size, reach)
        place = torch.arange(count, device=stop.device)
        valid = (place < stop[:, None]) & (place >= first[:, None])
    table = pages.page_table[:rows, : blocks_for(count, block_size)]
    return Places(table, valid, count, common)


def _seen(
    positions: Int[Tensor, " rows"], block_size: int, reach: Reach
) -> tuple[Int[Tensor, " rows"], Int[Tensor, " rows"]]:
    """The first place that the token at each of these positions sees, and the one behind it."""
    first = reach.first_visible_of(positions)
    begin = first // block_size * block_size
    return first - begin, positions + 1 - begin


def gather_rows(
    cache: Shaped[Tensor, "blocks heads block_size dim"], places: Places
) -> Shaped[Tensor, "rows heads count dim"]:
    """Every row's tokens, with zeros at places that it doesn't see.

    Zeros, since whatever stands there may be NaN, and 0 * NaN is NaN.
    """
    rows = movable(cache).transpose(0, 1)[:, places.table].flatten(2, 3)[:, :, : places.count]
    first, stop = places.common
    if (first, stop) != (0, places.count):
        for part in (slice(0, first), slice(max(first, stop), places.count)):
            rows[:, :, part].masked_fill_(~places.valid[None, :, part, None], 0)
    rows = rows.transpose(0, 1)
    return rows if rows.dtype == cache.dtype else rows.view(cache.dtype)


def gather_row(
    cache: Shaped[Tensor, "blocks heads block_size dim"],
    blocks: Int32[Tensor, " row_blocks"],
    places: slice,
) -> Shaped[Tensor, "heads tokens dim"]:
    """The tokens at some of the places of these kernel blocks."""
    row = movable(cache).transpose(0, 1)[:, blocks].flatten(1, 2)[:, places]
    return row if row.dtype == cache.dtype else row.view(cache.dtype)


def gather_tokens(
    cache: Shaped[Tensor, "blocks block_size *dims"],
    table: Int32[Tensor, "queries max_blocks"],
    positions: Int64[Tensor, "queries count"],
) -> Shaped[Tensor, "queries count *dims"]:
    """The tokens at each query's own positions, of the sequence whose blocks `table` has for it."""
    block_size = cache.shape[1]
    blocks = table.gather(1, positions // block_size)
    found = movable(cache)[blocks, positions % block_size]
    return found if found.dtype == cache.dtype else found.view(cache.dtype)


def movable(cache: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """The same bytes in a dtype that every operation moves; torch leaves out 8-bit floats."""
    is_byte = cache.dtype.itemsize == 1
    return cache.view(torch.uint8) if is_byte else cache


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Kernel blocks that so many tokens reach into."""
    return -(-num_tokens // block_size)
