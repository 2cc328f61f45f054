"""Tables for people: a cache plan in words, bytes and percent."""

import io

from rich.console import Console
from rich.table import Table

from hybridrt.cache.plan import CachePlan

LENGTHS = (512, 2_048, 8_192, 32_768)


def explain(plan: CachePlan) -> str:
    """The plan as plain text: groups, layers, and how many sequences fit."""
    console = Console(file=io.StringIO(), width=120)
    for table in (groups_table(plan), layers_table(plan)):
        console.print(table)
    console.print(summary(plan))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def groups_table(plan: CachePlan) -> Table:
    """One row per group."""
    columns = ("group", "layers", "page", "kernel block", "page bytes", "pages/slab", "padding")
    table = Table(*columns, title="Cache groups")
    for group in plan.groups:
        table.add_row(
            group.name,
            str(len(group.layers)),
            _tokens(group.page_size),
            _tokens(group.kernel_block_size),
            f"{group.page_bytes:,}",
            f"{group.pages_per_slab:,}",
            f"{group.page_stride - group.page_bytes:,} B ({group.padding_percent:.2f} %)",
        )
    return table


def layers_table(plan: CachePlan) -> Table:
    """One row per cached layer."""
    table = Table("layer", "mixer", "group", "B/token", "B/sequence", "states", title="Layers")
    for layer in plan.layers:
        states = ", ".join(f"{name} {list(shape)} {dtype}" for name, shape, dtype in layer.states)
        table.add_row(
            layer.name,
            layer.mixer,
            layer.group,
            f"{layer.bytes_per_token:,}",
            f"{layer.bytes_per_sequence:,}",
            states,
        )
    return table


def summary(plan: CachePlan) -> str:
    """Bytes per token and sequence, and the sequences that fit."""
    fits = ", ".join(f"{plan.sequences_of(length)} of {length:,}" for length in LENGTHS)
    return (
        f"Pool: {plan.num_slabs:,} slabs of {plan.slab_bytes:,} bytes = {plan.pool_bytes:,} bytes\n"
        f"A sequence takes {plan.bytes_per_sequence:,} bytes and {plan.bytes_per_token:,} a token\n"
        f"Sequences that fit at once: {fits} tokens"
    )


def _tokens(count: int | None) -> str:
    return "a sequence" if count is None else f"{count} tokens"
