"""A cache map for people: what each group and each sequence has of the pool."""

from typing import TYPE_CHECKING

from hybridrt.cache.explain import kind_text, simple_table, size_text

if TYPE_CHECKING:
    from rich.table import Table

    from hybridrt.cache.cache_map import CacheMap
    from hybridrt.show import Shown

MOST_SEQUENCES = 24
"""Those with the most bytes are shown, so many of them."""


def map_tables(cache_map: "CacheMap") -> "Shown":
    """A table of the groups, one of the sequences, and what is left in a sentence."""
    tables = [_groups_table(cache_map)]
    if cache_map.sequences:
        tables.append(_owners_table(cache_map))
    return [*tables, _rest(cache_map)]


def _groups_table(cache_map: "CacheMap") -> "Table":
    plan = cache_map.plan
    columns = ("group", "slabs", "pages\nin use", "shared", "cached", "free")
    columns += ("bytes\nin use", "bytes\ncached", "bytes\nfree")
    title = f"The pool: {plan.num_slabs:,} slabs of {size_text(plan.slab_bytes)}"
    table = simple_table(title, *columns, right=columns[1:])
    for use in cache_map.groups:
        pages = (use.pages_in_use, use.pages_shared, use.pages_cached, use.pages_free)
        sizes = (use.bytes_in_use, use.bytes_cached, use.bytes_free)
        table.add_row(
            kind_text(use.kind, use.group),
            f"{use.num_slabs:,}",
            *(f"{count:,}" for count in pages),
            *map(size_text, sizes),
        )
    free = size_text(cache_map.num_free_slabs * plan.slab_bytes)
    table.add_row("free slabs", f"{cache_map.num_free_slabs:,}", *[""] * 6, free)
    return table


def _owners_table(cache_map: "CacheMap") -> "Table":
    from rich.text import Text

    sizes = sorted(cache_map.owners().items(), key=lambda item: -item[1])
    table = simple_table("Pages of one sequence alone", "sequence", "bytes", right=("bytes",))
    for name, num_bytes in sizes[:MOST_SEQUENCES]:
        table.add_row(Text(name), size_text(num_bytes))
    if len(sizes) > MOST_SEQUENCES:
        others = sum(num_bytes for _, num_bytes in sizes[MOST_SEQUENCES:])
        table.add_row(f"{len(sizes) - MOST_SEQUENCES:,} others", size_text(others))
    table.add_row("shared by several", size_text(cache_map.shared_bytes))
    return table


def _rest(cache_map: "CacheMap") -> str:
    return (
        f"Fragmentation: {100 * cache_map.fragmentation:.1f} % of the free bytes are in slabs that "
        f"a group uses in part. Padding: {size_text(cache_map.padding)}."
    )
