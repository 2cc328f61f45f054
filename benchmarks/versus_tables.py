"""The tables of `versus_vllm.py`, and how far its rows are from what is aimed at."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Misses = Callable[[Row], list[str]]  # what a row misses an aim by

MOST_PADDING = {"zamba2-7b": 0.6}
MOST_BEYOND = {512: 3.0, 2048: 1.5, 8192: 1.0, 32768: 1.0}
LEAST_RUNNING = {("kimi-linear-48b", 200): 1.2, ("nemotron-3-nano-30b", 200): 1.2}
FLAT = 1.1  # what passes for equal, given how times vary


def document(rows: Sequence[Row], command: str, about: Row) -> str:
    """All tables as Markdown."""
    parts = [f"`{command}`", ", ".join(f"{name} {value}" for name, value in about.items())]
    commits = sorted({row["commit"] for row in rows})
    if commits != [about["commit"]]:
        parts.append(f"Rows are of commits {', '.join(commits)}.")
    tables = {"plan": plan, "capacity": capacity, "host": host, "flat": flat}
    parts.append(targets(rows))
    parts += [table(of) for test, table in tables.items() if (of := _of(rows, test))]
    return "\n\n".join(parts) + "\n"


def plan(rows: Sequence[Row]) -> str:
    lines: list[list[str]] = []
    for row in rows:
        ours, theirs = row["hybridrt"], row["vllm"]
        if "error" in ours:
            lines.append([row["geometry"], ours["error"]])
            continue
        padding = ", ".join(f"{g['name']} {g['padding_percent']:.2f}" for g in ours["groups"])
        beyond = [
            f"{one['beyond_percent']:.2f} / {_beyond(theirs, one['tokens'])}"
            for one in ours["one_request"]
        ]
        slabs = f"{ours['num_slabs']} of {ours['slab_bytes'] / 1e6:.1f} MB"
        lines.append([row["geometry"], slabs, padding, *beyond, f"{ours['plan_ms']}"])
    lengths = [f"beyond need at {n:,}, %" for n in MOST_BEYOND]
    heads = ["geometry", "slabs in 8 GiB", "padding, %", *lengths, "planned in ms"]
    text = "Plan: attention pages of 16 tokens. Beyond need: bytes that one decoding request holds"
    text += " and doesn't need, in percent of what it holds, hybridrt / vLLM."
    return text + "\n\n" + markdown(heads, lines)


def capacity(rows: Sequence[Row]) -> str:
    names = {"peak_running": "most running", "preemptions": "preemptions"}
    heads = ["geometry", "mean prompt", "tokens a step", "mean running", "ratio", "steps"]
    lines: list[list[str]] = []
    for row in where_vllm_is_better(rows):
        ours, theirs = row["hybridrt"], row["vllm"]
        line = [row["geometry"], f"{row['mean']:,}", f"{row['budget']:,}"]
        line += [_pair(ours, theirs, "mean_running"), _number(running_ratio(row), 3)]
        line += [_pair(ours, theirs, name) for name in ("steps", *names)]
        lines.append(line)
    text = "Capacity in 8 GiB: requests running while others wait, hybridrt / vLLM, at that one of"
    text += " 16,384 and 2,048 tokens a step with which more ran in vLLM; the aims are about both."
    return text + "\n\n" + markdown([*heads, *names.values()], lines)


def host(rows: Sequence[Row]) -> str:
    lines: list[list[str]] = []
    for row in rows:
        line = [row["geometry"], str(row["concurrency"])]
        for caching in ("", "_no_caching"):
            times = [row[side + caching].get("cpu_us_per_step") for side in SIDES]
            line += [_number(time, 1) for time in times]
            line.append(_number(host_ratio(row, caching), 2))
        lines.append(line)
    heads = ["geometry", "at a time", "hybridrt", "vLLM", "ratio"]
    heads += ["hybridrt, no caching", "vLLM, no caching", "ratio"]
    text = (
        "Host: microseconds of the thread's time a step, with prefix caching on both sides, and"
        " on neither."
    )
    return text + "\n\n" + markdown(heads, lines)


def flat(rows: Sequence[Row]) -> str:
    lines: list[list[str]] = []
    for row in rows:
        tenths = row["hybridrt"].get("cpu_us_by_tenth", ["fails"])
        sizes = row["hybridrt"].get("cpu_us_by_memory", {})
        times = [tenths[0], tenths[-1], *sizes.values()]
        lines.append([row["geometry"], *map(_number, times)])
    heads = ["geometry", "first tenth", "last tenth", "8 GiB", "60 GiB", "480 GiB"]
    text = (
        "Flat: microseconds a step with 16 requests at a time (median): in the first and the last"
    )
    text += " tenth of 20,000 requests in 60 GiB, and in pools of three sizes."
    return text + "\n\n" + markdown(heads, lines)


SIDES = ("hybridrt", "vllm")


def where_vllm_is_better(rows: Iterable[Row]) -> list[Row]:
    """Of the rows with different numbers of tokens a step, the one with most running in vLLM."""
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        key = row["geometry"], row["mean"]
        peak = row["vllm"].get("peak_running", 0)
        if key not in best or peak > best[key]["vllm"].get("peak_running", 0):
            best[key] = row
    return list(best.values())


def running_ratio(row: Row) -> float | None:
    ours, theirs = (row[side].get("mean_running") for side in ("hybridrt", "vllm"))
    return ours / theirs if ours and theirs else None


def host_ratio(row: Row, caching: str) -> float | None:
    ours, theirs = (row[side + caching].get("cpu_us_per_step") for side in SIDES)
    return ours / theirs if ours and theirs else None


def targets(rows: Sequence[Row]) -> str:
    """What was aimed at, and what misses it."""
    lines = []
    for test, checks in CHECKS.items():
        of = _of(rows, test)
        for text, misses in checks.items():
            if of:
                missed = [f"{row['geometry']} {miss}" for row in of for miss in _miss(misses, row)]
                lines.append([text, "; ".join(missed) or "yes"])
    return markdown(["aim", "reached, or what misses it"], lines)


def _miss(misses: Misses, row: Row) -> list[str]:
    error = row["hybridrt"].get("error")
    return [f"fails: {error}"] if error else misses(row)


def _padding(row: Row) -> list[str]:
    most = MOST_PADDING.get(row["geometry"], 0.5)
    groups = row["hybridrt"]["groups"]
    return [f"{g['padding_percent']} %" for g in groups if g["padding_percent"] > most]


def _slabs(row: Row) -> list[str]:
    ours = row["hybridrt"]
    wrong = [g["name"] for g in ours["groups"] if g["page_size"] not in (None, 16)]
    return wrong + ([str(ours["num_slabs"])] if ours["num_slabs"] < 32 else [])


def _beyond_aim(row: Row) -> list[str]:
    requests = row["hybridrt"]["one_request"]
    over = [one for one in requests if one["beyond_percent"] > MOST_BEYOND[one["tokens"]]]
    return [f"{one['beyond_percent']} % at {one['tokens']:,}" for one in over]


def _beyond_vllm(row: Row) -> list[str]:
    return [
        f"{ours['beyond_percent']} % at {ours['tokens']:,} (vLLM {theirs['beyond_percent']} %)"
        for ours, theirs in zip(
            row["hybridrt"]["one_request"], row["vllm"].get("one_request", ()), strict=False
        )
        if ours["beyond_percent"] > theirs["beyond_percent"]
    ]


def _where(row: Row) -> str:
    return f"{row['mean']:,} with {row['budget']:,} tokens a step"


def _running(row: Row) -> list[str]:
    least = LEAST_RUNNING.get((row["geometry"], row["mean"]), 0.99)
    ratio = running_ratio(row)
    return [f"{ratio:.3f} at {_where(row)}"] if ratio is not None and ratio < least else []


def _steps(row: Row) -> list[str]:
    ours, theirs = row["hybridrt"]["steps"], row["vllm"].get("steps", float("inf"))
    return [f"{ours:,} and not {theirs:,} at {_where(row)}"] if ours > theirs else []


def _host(caching: str) -> Misses:
    def misses(row: Row) -> list[str]:
        ratio = host_ratio(row, caching)
        return [f"{ratio:.2f} at {row['concurrency']}"] if ratio and ratio > 0.5 else []

    return misses


def _flat_in_time(row: Row) -> list[str]:
    times = row["hybridrt"]["cpu_us_by_tenth"]
    return [f"{times[0]} to {times[-1]} us"] if times[-1] > FLAT * times[0] else []


def _flat_in_size(row: Row) -> list[str]:
    times = list(row["hybridrt"]["cpu_us_by_memory"].values())
    return [f"{min(times)} to {max(times)} us"] if max(times) > FLAT * min(times) else []


CHECKS: Mapping[str, Mapping[str, Misses]] = {
    "plan": {
        "at most 0.5 % padding in every group (Zamba2 0.6 %)": _padding,
        "pages of 16 tokens, at least 32 slabs in 8 GiB": _slabs,
        "beyond need at most 3 % at 512 tokens, 1.5 % at 2,048, 1 % above": _beyond_aim,
        "beyond need not above vLLM's": _beyond_vllm,
    },
    "capacity": {
        "mean running at least 0.99 of vLLM's (1.2 for Kimi-Linear, Nemotron-3 at 200)": _running,
        "no more steps than vLLM": _steps,
    },
    "host": {
        "at most half of vLLM's time a step, no prefix caching on either side": _host(
            "_no_caching"
        ),
        "at most half of vLLM's time a step, prefix caching on both": _host(""),
    },
    "flat": {
        "a step takes no longer after 20,000 requests": _flat_in_time,
        "a step takes as long in 480 GiB as in 8 GiB": _flat_in_size,
    },
}


def _of(rows: Iterable[Row], test: str) -> list[Row]:
    return [row for row in rows if row["test"] == test]


def _beyond(answer: Row, tokens: int) -> str:
    found = [
        one["beyond_percent"] for one in answer.get("one_request", ()) if one["tokens"] == tokens
    ]
    return f"{found[0]:.2f}" if found else "fails"


def _pair(ours: Row, theirs: Row, name: str) -> str:
    return " / ".join(_number(side.get(name, "fails")) for side in (ours, theirs))


def _number(value: float | str | None, digits: int = 1) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    table = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in table)
