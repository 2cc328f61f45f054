"""A cache plan for people (tables) and for programs (plain data)."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from hybridrt.cache.plan import CachePlan, GroupPlan, LayerPlan
from hybridrt.cache.spec import Window
from hybridrt.show import Shown, as_text

LENGTHS = (512, 2_048, 8_192, 32_768, 131_072)
"""Tokens of the sequences that are counted."""
MOST_ROWS = 24
"""A table of more layers than this has one row for all layers that are alike."""
KIND_STYLES = {"full": "cyan", "window": "green", "state": "magenta"}


def explain(plan: CachePlan) -> str:
    """The plan as plain text: groups, layers, what a sequence takes and how many fit."""
    return as_text(plan_shown(plan))


def plan_shown(plan: CachePlan) -> Shown:
    """The plan as tables and a text."""
    lines = [summary(plan), f"Sequences that fit at once: {_fits_text(plan)} tokens", *plan.notes]
    return [groups_table(plan), layers_table(plan), "\n".join(lines)]


def simple_table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    """An empty table in the one style of this project; columns of numbers stand `right`."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    right = set(right)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    return table


def groups_table(plan: CachePlan) -> Table:
    """One row per group."""
    columns = ("group", "layers", "page of", "block", "page bytes", "pages/slab", "padding")
    table = simple_table("Cache groups", *columns, right=("layers", *columns[4:]))
    for group in plan.groups:
        table.add_row(
            kind_text(group.kind, group.name),
            str(len(group.layers)),
            _page_of(group),
            "page" if group.blocks_per_page == 1 else f"{group.kernel_block_size:,} tokens",
            f"{group.page_bytes:,}",
            f"{group.pages_per_slab:,}",
            f"{group.padding_bytes:,} B ({group.padding_percent:.2f} %)",
        )
    return table


def layers_table(plan: CachePlan) -> Table:
    """One row per cached layer; of very many, one row for those that are alike."""
    table = simple_table("Cached layers", "layer", "mixer", "group", "bytes", "a page holds")
    for layers in alike(plan.layers):
        layer = layers[0]
        table.add_row(
            names_text(layers),
            layer.mixer,
            kind_text(layer.kind, layer.group),
            bytes_text(layer),
            states_text(layer),
        )
    return table


def fits_table(plan: CachePlan, lengths: Sequence[int] = LENGTHS) -> Table:
    """How many sequences of which length fit at once."""
    columns = ("tokens a sequence", "bytes a sequence", "sequences that fit")
    table = simple_table("Sequences", *columns, right=columns)
    for fit in fits(plan, lengths):
        count = fit["sequences"]
        table.add_row(
            f"{fit['tokens']:,}", f"{fit['bytes']:,}", "any" if count is None else f"{count:,}"
        )
    return table


def summary(plan: CachePlan) -> str:
    """The pool, what a sequence takes of it, and what can be shared, in words."""
    window = ""
    if plan.bytes_per_window_token:
        window = f", {plan.bytes_per_window_token:,} a token in a window"
    return (
        f"Pool: {plan.num_slabs:,} slabs of {plan.slab_bytes:,} bytes = {plan.pool_bytes:,} bytes"
        f" ({size_text(plan.pool_bytes)})\n"
        f"A sequence takes {plan.bytes_per_sequence:,} bytes, {plan.bytes_per_token:,} a token"
        f"{window}\n"
        f"The shortest prompt that can share pages with another has "
        f"{plan.least_shared_prompt:,} tokens"
    )


def plan_data(plan: CachePlan, lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """The plan as plain data, under the names of its attributes."""
    return {
        "slab_bytes": plan.slab_bytes,
        "num_slabs": plan.num_slabs,
        "pool_bytes": plan.pool_bytes,
        "padding_percent": plan.padding_percent,
        "bytes_per_token": plan.bytes_per_token,
        "bytes_per_window_token": plan.bytes_per_window_token,
        "bytes_per_sequence": plan.bytes_per_sequence,
        "least_shared_prompt": plan.least_shared_prompt,
        "notes": list(plan.notes),
        "longest_sequence": plan.longest_sequence(),
        "fits": fits(plan, lengths),
        "groups": [_group_data(group) for group in plan.groups],
        "layers": [layer_data(layer) for layer in plan.layers],
    }


def layer_data(layer: LayerPlan) -> dict[str, Any]:
    """One layer of the plan as plain data."""
    names = ["index", "name", "kind", "mixer", "group", "page_size", "kernel_block_size"]
    names += ["bytes_per_page", "bytes_per_token", "bytes_per_sequence", "offset", "part"]
    states = [
        {"name": name, "shape": list(shape), "dtype": dtype} for name, shape, dtype in layer.states
    ]
    data = {name: getattr(layer, name) for name in names}
    return data | {"window": _window_data(layer.window), "states": states}


def fits(plan: CachePlan, lengths: Sequence[int] = LENGTHS) -> list[dict[str, int | None]]:
    """For each length: the bytes of a sequence, and how many fit (None: any number)."""
    return [
        {
            "tokens": length,
            "bytes": plan.bytes_for(length),
            "sequences": plan.sequences_of(length),
        }
        for length in lengths
    ]


def alike(layers: Sequence[LayerPlan]) -> list[list[LayerPlan]]:
    """The layers one by one or, if they are very many, in lists of those that are alike."""
    if len(layers) <= MOST_ROWS:
        return [[layer] for layer in layers]
    classes: dict[Any, list[LayerPlan]] = {}
    for layer in layers:
        classes.setdefault((layer.mixer, layer.group, layer.states), []).append(layer)
    return list(classes.values())


def names_text(layers: Sequence[LayerPlan]) -> str:
    """A layer's name without what all names begin with; the numbers of several layers."""
    if len(layers) == 1:
        return re.sub(r"^(model\.)?layers\.", "", layers[0].name)
    return f"{number_ranges([number_in(layer.name) for layer in layers])} ({len(layers)})"


def number_in(name: str) -> int:
    """The number of the layer that a name means."""
    match = re.search(r"\d+", name)
    return int(match[0]) if match else 0


def number_ranges(numbers: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2, 5`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def kind_text(kind: str, text: str) -> str:
    """Text in the colour of a kind."""
    style = KIND_STYLES.get(kind)
    return f"[{style}]{text}[/]" if style else text


def bytes_text(layer: LayerPlan) -> str:
    """What a token takes, or a sequence where that is all."""
    if layer.page_size is None:
        return f"{layer.bytes_per_sequence:,} a sequence"
    per_token = f"{layer.bytes_per_token:,} a token"
    return per_token if layer.window is None else f"{per_token}, {layer.window.size:,} at most"


def states_text(layer: LayerPlan) -> str:
    """The tensors in a kernel block, one in a line."""
    return "\n".join(tensor_text(*state) for state in layer.states)


def tensor_text(name: str, shape: Sequence[int], dtype: str) -> str:
    """`kv 2x16x64 float32`."""
    return f"{name} {'x'.join(map(str, shape))} {dtype}"


def size_text(num_bytes: float) -> str:
    """`12.3 MiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:,.0f} bytes" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} GiB"


def _fits_text(plan: CachePlan) -> str:
    counts = {fit["tokens"]: fit["sequences"] for fit in fits(plan)}
    return ", ".join(
        f"{'any' if count is None else format(count, ',')} of {length:,}"
        for length, count in counts.items()
    )


def _page_of(group: GroupPlan) -> str:
    if group.page_size is not None:
        return f"{group.page_size:,} tokens"
    return "a sequence" if group.parts == 1 else f"1/{group.parts} of a sequence"


def _group_data(group: GroupPlan) -> dict[str, Any]:
    names = "name kind layers page_size kernel_block_size page_bytes page_stride pages_per_slab"
    names += " parts padding_bytes padding_percent"
    data = {name: getattr(group, name) for name in names.split()}
    return data | {"layers": list(group.layers), "window": _window_data(group.window)}


def _window_data(window: Window | None) -> dict[str, int | bool] | None:
    return None if window is None else {"size": window.size, "chunked": window.chunked}
