"""The tables of `gpu.py` and `gpu_kernels.py`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from versus_tables import markdown

Row = Mapping[str, Any]


def write(path: Path | None, command: str, about: Row, tables: str) -> None:
    """The file beside the one of JSON, with the command and the machine before its tables."""
    if path is None:
        return
    named = ", ".join(f"{name} {value}" for name, value in about.items())
    text = f"`{command}`\n\n{named}\n\n{tables}"
    path.with_suffix(".md").write_text(text, encoding="utf-8")


def measured_before(path: Path | None, kind: str) -> dict[str, Any]:
    """What a file has of `kind`, "models" or "kernels", each by its name."""
    if path is None or not path.exists():
        return {}
    return {one["name"]: one for one in json.loads(path.read_text(encoding="utf-8"))[kind]}


def of_models(models: Sequence[Row]) -> str:
    """Steps and prompts beside the floor, then what stands beside transformers."""
    heads = ["model", "what", "takes", "of the limit", "on the GPU", "the host's", "commit"]
    lines = [
        [found["name"], *_cells(row), found["commit"]] for found in models for row in found["rows"]
    ]
    text = "Shares of the limit: 1 is what the memory, or the rate of products, allows.\n\n"
    text += markdown(heads, lines)
    beside = [found for found in models if "against" in found]
    if not beside:
        return text
    heads = ["model", "hybridrt", "transformers", "times"]
    return f"{text}\n\n{markdown(heads, [_beside(found) for found in beside])}"


def of_kernels(kernels: Sequence[Row]) -> str:
    """Each kernel's time beside others'."""
    heads = ["kernel", "ours", "theirs", "theirs / ours", "ours, TB/s", "ours, TFLOP/s", "commit"]
    return markdown(heads, [[*_kernel(row), row["commit"]] for row in kernels])


def _cells(row: Row) -> list[str]:
    what = f"{row['what']}, {row['batch']} x {row['tokens']:,} tokens"
    cells = [what, _ms(row["seconds"]), f"{row['floor'] / row['seconds']:.0%}"]
    on_gpu = row.get("on_gpu")
    if on_gpu is None:
        return [*cells, "", ""]
    return [*cells, _ms(on_gpu), _ms(row["seconds"] - on_gpu)]


def _beside(found: Row) -> list[str]:
    took = found["against"]
    if "transformers" not in took:
        return [found["name"], f"{took['hybridrt']:.2f} s", took["error"], ""]
    ratio = took["transformers"] / took["hybridrt"]
    times = [f"{took[side]:.2f} s" for side in ("hybridrt", "transformers")]
    return [found["name"], *times, f"{ratio:.1f}"]


def _kernel(row: Row) -> list[str]:
    known = {"name", "bytes", "operations", "commit"}
    ours, others = row.get("ours", None), row.keys() - known - {"ours"}
    theirs = ", ".join(f"{name} {_took(row[name])}" for name in sorted(others))
    line = [row["name"], "" if ours is None else _took(ours), theirs]
    if not isinstance(ours, float):
        return [*line, "", "", ""]
    ratios = [f"{row[name] / ours:.2f}" for name in sorted(others) if isinstance(row[name], float)]
    rates = [f"{row['bytes'] / ours / 1e12:.2f}", f"{row['operations'] / ours / 1e12:.0f}"]
    return [*line, ", ".join(ratios), *rates]


def _took(seconds: float | str) -> str:
    return seconds if isinstance(seconds, str) else f"{1e6 * seconds:.0f} us"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"
