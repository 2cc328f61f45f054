"""One engine's numbers, drawn for a terminal of 80 columns or more."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hybridrt.show import KIND_STYLES, kind_text, simple_table, size_text

LATE = 5.0  # seconds without a step, from which on that is said
BAR_WIDTH = 40
_SIGNS = {"in_use": ("█", "#"), "cached": ("▒", "="), "free": ("░", ".")}
_LEGEND = {"in_use": "in use", "cached": "cached", "free": "free"}


def engine_view(engine: Mapping[str, Any], now: float) -> RenderableType:
    """What is known of an engine; `now` in seconds since 1970."""
    parts: list[RenderableType] = [Text(_title(engine, now), style="bold"), _numbers(engine, now)]
    parts += [_pool(engine), _groups(engine), _reasons(engine), Text()]
    return Group(*parts)


def _title(engine: Mapping[str, Any], now: float) -> str:
    model = str(engine["model"])
    if len(model) > 40:
        model = "..." + model[-37:]
    up = _duration(now - engine["started"])
    return f"{model} on {engine['device']}, process {engine['pid']}, up {up}"


def _numbers(engine: Mapping[str, Any], now: float) -> Table:
    row = engine["now"]
    table = Table.grid(padding=(0, 2))
    quiet, busy = now - row["time"], row["running"] + row["waiting"]
    steps = f"{row['step']:,}"
    if quiet >= LATE:
        steps += f", {'none' if busy else 'idle'} for {_duration(quiet)}"
    requests = f"{row['running']:,} running, {row['waiting']:,} waiting"
    table.add_row("requests", f"{requests}, {row['sessions']:,} sessions open")
    table.add_row("steps", steps)
    speeds = [row[f"{what}_tokens_per_second"] for what in ("prompt", "generated")]
    if not busy and quiet >= LATE:
        speeds = [0.0, 0.0]
    table.add_row("tokens/s", "{:,.1f} of prompts, {:,.1f} generated".format(*speeds))
    return table


@dataclass(frozen=True, slots=True)
class _Bar:
    """Parts of the pool, as lengths in columns; in characters that the terminal has."""

    sizes: Mapping[str, int]
    total: int
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        plain = options.ascii_only
        text = Text(style=self.style, no_wrap=True)
        end = at = 0
        for what, size in self.sizes.items():
            end += size
            column = round(BAR_WIDTH * end / max(self.total, 1))
            if size and column == at:  # something is there, so it is seen
                column = min(at + 1, BAR_WIDTH)
            text.append(_SIGNS[what][plain] * (column - at))
            at = column
        yield text


def _pool(engine: Mapping[str, Any]) -> Table:
    signs = ", ".join(f"{_SIGNS[what][0]} {text}" for what, text in _LEGEND.items())
    total = engine["pool_bytes"]
    table = Table.grid(padding=(0, 2))
    table.add_row("pool", Text(f"{size_text(total)}: {signs}"), "")
    for kind, sizes in _by_kind(engine).items():
        held = sum(sizes.values())
        table.add_row(
            kind_text(kind, f"  {kind}"), _Bar(sizes, total, KIND_STYLES[kind]), size_text(held)
        )
    free = engine["bytes"]["free_slabs"]
    table.add_row("  any", _Bar({"free": free}, total, "dim"), size_text(free))
    return table


def _by_kind(engine: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    kinds: dict[str, dict[str, int]] = {}
    for group in engine["groups"]:
        sizes = kinds.setdefault(group["kind"], dict.fromkeys(_SIGNS, 0))
        for what in sizes:
            sizes[what] += engine["bytes"]["groups"][group["name"]][what]
    return kinds


def _groups(engine: Mapping[str, Any]) -> Table:
    columns = ("group", "pages in use", "cached", "free", "bytes a page")
    table = simple_table(None, *columns, right=columns[1:])
    for group in engine["groups"]:
        sizes, page = engine["bytes"]["groups"][group["name"]], group["page_bytes"]
        counts = [f"{sizes[what] // page:,}" for what in _SIGNS]
        table.add_row(kind_text(group["kind"], group["name"]), *counts, f"{page:,}")
    return table


def _reasons(engine: Mapping[str, Any]) -> Text:
    total, rate = engine["total"], engine["now"]["hit_rate"]
    lately = "" if rate is None else f", {100 * rate:.0f} % lately"
    line = (
        f"hit rate  {100 * total['hit_rate']:.1f} % of {total['prompt_tokens']:,} prompt tokens"
        f"{lately}"
    )
    notes = sorted(total["notes"].items(), key=lambda item: -item[1])
    counts = ", ".join(f"{name} {count:,}" for name, count in notes)
    dropped = engine["cache"].get("dropped_pages", 0)
    lost = f"; {dropped:,} pages dropped" if dropped else ""
    return Text(f"{line}\nprompts   {counts or 'none yet'}{lost}")


def _duration(seconds: float) -> str:
    """`1:02:03`, or `4:05`."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
