"""Entries: what several tokens leave in the cache together, and where it stands."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int32, Int64, Shaped
from torch import Tensor


@dataclass(frozen=True, slots=True)
class EntryGrid:
    """Where the entries of a layer stand in its kernel blocks.

    Entry i is of the tokens `i * rate` to `i * rate + rate - 1`. It stands in the kernel block
    of the last of them, which writes it, behind those that end earlier in that block; so blocks
    of any number of tokens hold entries of any rate.
    """

    rate: int
    block_size: int  # in tokens

    def locate(
        self, entries: Int[Tensor, "*entries"]
    ) -> tuple[Int[Tensor, "*entries"], Int[Tensor, "*entries"]]:
        """Which of a sequence's blocks an entry is in, and which of that block's entries it is."""
        blocks = (entries * self.rate + self.rate - 1) // self.block_size
        return blocks, entries - blocks * self.block_size // self.rate

    def slots(
        self,
        token_slots: Int64[Tensor, " tokens"],
        positions: Int64[Tensor, " tokens"],
        entries_per_block: int,
    ) -> Int64[Tensor, " tokens"]:
        """Where each token writes the entry that ends with it; -1 for tokens that end none."""
        ends = ((positions + 1) % self.rate == 0) & (token_slots >= 0)
        _, places = self.locate(positions // self.rate)
        slots = token_slots // self.block_size * entries_per_block + places
        return torch.where(ends, slots, -1)


def gather_entries(
    cache: Shaped[Tensor, "blocks entries dim"],
    table: Int32[Tensor, "rows max_blocks"],
    entries: Int[Tensor, "rows count"],
    seen: Bool[Tensor, "rows count"],
    grid: EntryGrid,
) -> Float[Tensor, "rows count dim"]:
    """These entries of each row's sequence, with zeros for those that it doesn't see.

    Zeros, since whatever stands there may be NaN, and 0 * NaN is NaN.
    """
    blocks, places = (index.masked_fill(~seen, 0).long() for index in grid.locate(entries))
    return cache[table.gather(1, blocks).long(), places].masked_fill_(~seen[..., None], 0)
