"""The byte map of a plan: which tensor stands where in a page of each group."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from hybridrt.cache.explain import kind_text, names_text, simple_table, tensor_text
from hybridrt.cache.plan import CachePlan, GroupPlan, LayerPlan
from hybridrt.cache.spec import State, align

MOST_ROWS = 20  # of a page; those in the middle of a longer one are left out


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes `first` to `last` of a page, counted from its beginning, and what they hold.

    `page` says which part of a state the page is, `layer` is None for padding.
    """

    part: int
    block: int
    first: int
    last: int
    layer: LayerPlan | None
    tensor: str


def spans(plan: CachePlan, group: GroupPlan) -> list[Span]:
    """Everything in a page of a group, or in each of the pages of a split state."""
    return [
        span
        for part in range(group.parts)
        for block in range(group.blocks_per_page)
        for span in _block_spans(plan, group, part, block)
    ]


def byte_map_table(plan: CachePlan, group: GroupPlan) -> Table:
    """The spans of a group, those in the middle left out if they are very many."""
    of = "a sequence" if group.page_size is None else f"{group.page_size} tokens"
    stride = f"{group.page_stride:,} bytes"
    pages = f"a page of {stride}" if group.parts == 1 else f"{group.parts} pages of {stride}"
    title = f"{group.name}: {of} of {len(group.layers)} layers in {pages}"
    numbers = ["first byte", "last byte"]
    numbers += ["part"] if group.parts > 1 else []
    numbers += ["block"] if group.blocks_per_page > 1 else []
    table = simple_table(title, *numbers, "layer", "mixer", "tensor", right=numbers)
    for span in _shortened(spans(plan, group)):
        if span is None:
            table.add_row("...", "...")
            continue
        cells = [f"{getattr(span, name.replace(' byte', '')):,}" for name in numbers]
        layer = span.layer
        names = ("", "") if layer is None else (names_text([layer]), layer.mixer)
        table.add_row(*cells, names[0], kind_text(group.kind, names[1]), span.tensor)
    return table


def byte_map(plan: CachePlan) -> str:
    """The byte maps of all groups as plain text."""
    file = io.StringIO()
    console = Console(file=file, width=100, color_system=None, force_terminal=False)
    for group in plan.groups:
        console.print(byte_map_table(plan, group))
        console.print()
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).strip("\n")


def _block_spans(plan: CachePlan, group: GroupPlan, part: int, block: int) -> Iterator[Span]:
    start = block * group.block_stride
    for layer in plan.layers:
        if layer.group != group.name or layer.part != part:
            continue
        for name, shape, dtype in layer.states:
            num_bytes = State(name, shape, getattr(torch, dtype)).num_bytes
            tensor = tensor_text(name, shape, dtype)
            yield Span(part, block, start, start + num_bytes - 1, layer, tensor)
            start += align(num_bytes)
    end = (block + 1) * group.block_stride
    if start < end:
        yield Span(part, block, start, end - 1, None, "padding")


def _shortened(rows: Sequence[Span]) -> Iterator[Span | None]:
    if len(rows) <= MOST_ROWS:
        yield from rows
        return
    half = MOST_ROWS // 2
    yield from rows[:half]
    yield None
    yield from rows[-half:]
