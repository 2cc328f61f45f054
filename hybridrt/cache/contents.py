"""The contents of a sequence's pages, apart from where a pool happens to have them.

Pools of unlike sizes cut their slabs into unlike pages and split states in unlike ways.
Without padding, and with the parts of a state put together, the bytes of a sequence are
the same in all of them.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from hybridrt.cache.page_table import PageTable
from hybridrt.cache.plan import CachePlan, GroupPlan
from hybridrt.cache.pool import Pool

Contents = Mapping[str, UInt8[Tensor, "rows bytes"]]
"""Per group the bytes that its layers use, on the CPU: a row for each page, or the one row of
a state."""


def read_contents(
    pool: Pool, tables: Sequence[PageTable], num_tokens: int
) -> dict[str, UInt8[Tensor, "rows bytes"]]:
    """A copy of what the first `num_tokens` tokens have in a sequence's pages.

    `tables` has one table for each group.
    """
    contents: dict[str, Tensor] = {}
    for group, table in zip(pool.plan.groups, tables, strict=True):
        num_pages = group.pages_for(num_tokens) - table.num_released
        blocks = pool.blocks(group)[_block_ids(pool, group, table, num_pages)]
        if group.page_size is None:
            sizes = _part_bytes(pool.plan, group)
            parts = [block[:size] for block, size in zip(blocks, sizes, strict=True)]
            contents[group.name] = torch.cat(parts)[None].cpu() if parts else blocks.cpu()
        else:
            used = blocks[:, : group.page_bytes // group.blocks_per_page]
            contents[group.name] = used.unflatten(0, (-1, group.blocks_per_page)).flatten(1).cpu()
    return contents


def write_contents(pool: Pool, tables: Sequence[PageTable], contents: Contents) -> None:
    """Puts a copy of everything into the pages of another sequence, of this pool or another."""
    for group, table in zip(pool.plan.groups, tables, strict=True):
        blocks, ids = pool.blocks(group), _block_ids(pool, group, table, len(table))
        given = contents[group.name].to(pool.bytes.device)
        if group.page_size is None:
            parts = given[0].split(_part_bytes(pool.plan, group))
            for block, part in zip(ids.tolist(), parts, strict=True):
                blocks[block, : len(part)] = part
        else:
            rows = given.unflatten(1, (group.blocks_per_page, -1)).flatten(0, 1)
            blocks[ids, : rows.shape[1]] = rows


def content_bytes(plan: CachePlan) -> dict[str, int]:
    """Per group the bytes of a row of its contents."""
    return {
        group.name: group.page_bytes if group.page_size is not None else group.sequence_bytes
        for group in plan.groups
    }


def _block_ids(
    pool: Pool, group: GroupPlan, table: PageTable, num_pages: int
) -> Int64[Tensor, " blocks"]:
    ids = table.kernel_ids.array[: num_pages * group.blocks_per_page]
    return torch.from_numpy(ids.astype(np.int64)).to(pool.bytes.device)


def _part_bytes(plan: CachePlan, group: GroupPlan) -> list[int]:
    """Bytes that the layers of each part of a state use."""
    sizes = [0] * group.parts
    for layer in plan.layers:
        if layer.group == group.name:
            sizes[layer.part] += layer.block_bytes
    return sizes
