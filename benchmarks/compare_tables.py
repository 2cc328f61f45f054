"""The tables of `compare.py`."""

from collections.abc import Mapping, Sequence
from typing import Any

from versus_tables import markdown

Row = Mapping[str, Any]

PEERS = {"transformers": "transformers", "vllm": "vLLM", "llama.cpp": "llama.cpp"}
SHORT = {"tokens": (128,), "batch": (1, 8)}


def document(rows: Sequence[Row], command: str, about: Mapping[str, Any]) -> str:
    """All rows as Markdown."""
    versions = {k: v for row in rows for k, v in row.get("versions", {}).items() if v}
    machine = {name: value for name, value in about.items() if name != "commit"} | versions
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    parts = [
        f"`{command}`",
        ", ".join(f"{name} {value}" for name, value in machine.items()) + f"; commits {commits}",
        f"The machine reads {_range(rows, 'bytes_per_second', 1e9)} GB/s and multiplies bfloat16 "
        f"at {_range(rows, 'operations_per_second', 1e12)} TFLOP/s. A prefill's time is that to "
        f"the first token of all prompts, a decode's that of a step. Ratios are a peer's time "
        f"over ours: above 1, hybridrt is faster. The last columns are the floor, what the "
        f"machine allows, and our time in times of it.",
        table(rows),
        *_notes(rows),
    ]
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row]) -> str:
    """A line for each row."""
    peers = [name for name in PEERS if any(name in row for row in rows)]
    heads = ["model", "what", "tokens", "batch", "hybridrt"]
    heads += [head for name in peers for head in (PEERS[name], "ratio")]
    return markdown([*heads, "floor", "x floor"], [_cells(row, peers) for row in rows])


def _cells(row: Row, peers: Sequence[str]) -> list[str]:
    ours = row.get("hybridrt", {})
    cells = [row["model"], row["what"], f"{row['tokens']:,}", str(row["batch"])]
    cells.append(_speed(row, ours))
    for name in peers:
        theirs = row.get(name, {})
        both = "median" in ours and "median" in theirs
        cells.append(_speed(row, theirs))
        cells.append(f"{theirs['median'] / ours['median']:.2f}" if both else "")
    times = f"{ours['median'] / row['floor']:.1f}" if "median" in ours else ""
    return [*cells, _speed(row, {"median": row["floor"]}), times]


def _speed(row: Row, side: Row) -> str:
    """A prefill in tokens a second, a decode in milliseconds; a star for what notes explain."""
    if "median" not in side:
        return "fails" if "error" in side else ""
    if row["what"] == "prefill":
        text = f"{row['batch'] * row['tokens'] / side['median']:,.0f} tok/s"
    else:
        text = f"{1000 * side['median']:,.1f} ms"
    return text + "*" * ("note" in side or side.get("runs") == 1)


def _range(rows: Sequence[Row], name: str, unit: float) -> str:
    """The least and the most of a number, where parts were run at different times."""
    values = sorted({f"{row[name] / unit:.1f}" for row in rows}, key=float)
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _notes(rows: Sequence[Row]) -> list[str]:
    """What stars and failures mean."""
    notes: list[str] = []
    sides = [(row, name, row[name]) for row in rows for name in ("hybridrt", *PEERS) if name in row]
    if any(side.get("runs") == 1 for _, _, side in sides):
        notes.append("\\* One run, for the time it takes; all others are medians of several.")
    for row, name, side in sides:
        where = f"{name}, {row['model']}, {row['what']} {row['batch']} x {row['tokens']:,}"
        if "note" in side:
            notes.append(f"\\* {where}: {side['note']}.")
    failures: dict[str, list[str]] = {}
    for row, name, side in sides:
        if "error" in side:
            text = f"{name} fails: {side['error'].splitlines()[0][:200]}"
            failures.setdefault(text, []).append(row["model"])
    notes += [f"{', '.join(dict.fromkeys(m))}: {text}" for text, m in failures.items()]
    return notes
