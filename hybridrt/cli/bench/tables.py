"""Rows of times: beside the floor, and beside another runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridrt.cli.output import console, plain

if TYPE_CHECKING:
    from hybridrt.measure.timing import Spread

_TIMES = ("ms", "quartiles", "floor ms", "x floor")


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured (`about`), the seconds of each side, and those of the floor.

    `tokens` come out of these seconds, for a rate; 0: there is none.
    """

    about: Mapping[str, Any]
    tokens: int
    sides: "Mapping[str, Spread]"
    floor_seconds: float | None

    @property
    def seconds(self) -> float:
        """Our median."""
        return self.sides["hybridrt"].median

    def data(self) -> dict[str, Any]:
        """As plain data. `times_floor` and `ratios` are better when near 1, and when above 1."""
        data = {**self.about, **plain(self.sides), "floor_seconds": self.floor_seconds}
        if self.tokens:
            data["tokens_per_second"] = self.tokens / self.seconds
        data["times_floor"] = self.seconds / self.floor_seconds if self.floor_seconds else None
        return data | {f"{name}_ratio": ratio for name, ratio in self.ratios().items()}

    def ratios(self) -> dict[str, float]:
        """The time of each other side over ours."""
        others = (name for name in self.sides if name != "hybridrt")
        return {name: self.sides[name].median / self.seconds for name in others}

    def cells(self) -> list[str]:
        """As a line of a table."""
        spread = self.sides["hybridrt"]
        about = [f"{value:,}" if isinstance(value, int) else value for value in self.about.values()]
        cells = [*about, _ms(spread.median), f"{_ms(spread.lower)} - {_ms(spread.upper)}"]
        if self.floor_seconds:
            cells += [_ms(self.floor_seconds), f"{self.seconds / self.floor_seconds:,.1f}"]
        else:
            cells += ["", ""]
        cells.append(f"{self.tokens / self.seconds:,.0f}" if self.tokens else "")
        for name, ratio in self.ratios().items():
            cells += [_ms(self.sides[name].median), f"{ratio:,.2f}"]
        return cells


def print_rows(title: str, rows: Sequence[Row], heading: str, notes: Sequence[str]) -> None:
    """A table for people, with what it was measured on above, and remarks below."""
    from hybridrt.cache.explain import simple_table

    rates = ["tok/s"] if any(row.tokens for row in rows) else []
    peers = [head for name in rows[0].ratios() for head in (f"{name} ms", "ratio")]
    columns = [*rows[0].about, *_TIMES, *rates, *peers]
    words = [name for name, value in rows[0].about.items() if isinstance(value, str)]
    table = simple_table(title, *columns, right=[c for c in columns if c not in words])
    for row in rows:
        cells = row.cells()
        if not rates:
            del cells[len(row.about) + len(_TIMES)]
        table.add_row(*cells)
    out = console()
    out.print(heading, style="bold", markup=False)
    out.print()
    out.print(table)
    out.print()
    for note in notes:
        out.print(note)


def heading(data: Mapping[str, Any]) -> str:
    """The model, and where it ran."""
    threads = f", {times(data['machine']['threads'], 'thread')}" * (data["device"] == "cpu")
    text = f"{data['model']}: {data['dtype']} on {data['device']}{threads}"
    if "limits" not in data:
        return text
    limits = data["limits"]
    return (
        f"{text}, loaded in {data['load_seconds']:.1f} s\n"
        f"The machine reads {limits['bytes_per_second'] / 1e9:.1f} GB/s and multiplies at "
        f"{limits['operations_per_second'] / 1e12:.2f} TFLOP/s."
    )


def notes(data: Mapping[str, Any]) -> list[str]:
    """What to know of the numbers."""
    found = [f"Medians of {times(data['repeats'], 'run')}, after one that is not counted."]
    preemptions = data.get("num_preemptions")
    if preemptions:
        found.append(f"[yellow]{preemptions} preemptions: the cache is too small for this.[/]")
    return found


def times(count: int, thing: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:,.0f}" if milliseconds >= 1000 else f"{milliseconds:.3g}"
