"""The tables of `reuse.py`, and how far its rows are from what is aimed at."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from versus_tables import markdown

Row = Mapping[str, Any]

LEAST_HITS = {"chat": 0.95, "agent": 0.95, "shared-1500-700": 0.90, "shared-400-100": 0.90}
LEAST_OF_YARDSTICK = 0.95
LEAST_OF_VLLM = 1.2
WITHOUT_STATES = ("gemma-3-27b", "deepseek-v3")
MOST_HOST = 1.3
MEAN, MEDIAN = "cpu_us_per_step", "median_cpu_us_per_step"
FLAT = 1.1  # what passes for equal, given how times vary


def document(rows: Sequence[Row], command: str, about: Row) -> str:
    """All tables as Markdown."""
    parts = [f"`{command}`", ", ".join(f"{name} {value}" for name, value in about.items())]
    commits = sorted({row["commit"] for row in rows})
    if commits != [about["commit"]]:
        parts.append(f"Rows are of commits {', '.join(commits)}.")
    tables = {"hits": hits, "pressure": pressure, "host": host, "filled": filled}
    parts.append(aims(rows))
    parts += [table(of) for test, table in tables.items() if (of := _of(rows, test))]
    return "\n\n".join(parts) + "\n"


def hits(rows: Sequence[Row]) -> str:
    traces = [*dict.fromkeys(row["trace"] for row in rows)]
    cells = {(row["geometry"], row["trace"]): row for row in rows}
    names = dict.fromkeys(row["geometry"] for row in rows)
    lines = [[name, *(_both(cells[name, trace]) for trace in traces)] for name in names]
    text = "Hits: cached / ideal in 60 GiB, one request after the other, hybridrt / vLLM (the"
    text += " better of its two settings). The ideal is the longest prefix that was ever there."
    return text + "\n\n" + markdown(["geometry", *traces], lines)


def pressure(rows: Sequence[Row]) -> str:
    heads = ["geometry", "memory", "hybridrt", "vLLM", "ratio", "yardstick", "policy"]
    lines: list[list[str]] = []
    for row in rows:
        ideal, policy = row["hybridrt"]["ideal_tokens"], best_policy(row)
        shares = [_share(row[side], ideal) for side in ("hybridrt", "vllm")]
        line = [row["geometry"], row["cache_memory"], *shares, f"{of_vllm(row):.2f}"]
        seer = _clairvoyant(row) / ideal
        line += [f"{row['yardstick']['online'][policy] / ideal:.3f}", policy]
        lines.append([*line, f"{of_yardstick(row):.3f}", f"{seer:.3f}"])
    text = (
        "Pressure: cached / ideal, where the ideal has endless memory. The yardstick is a cache of"
        " exact bytes, without slabs or pages, under the best of several policies for each row"
        " (`yardstick.py`). Clairvoyant: the same cache, told which prompts will come; it says"
        " what the future is worth, and no server can follow it."
    )
    return text + "\n\n" + markdown([*heads, "of yardstick", "clairvoyant"], lines)


def host(rows: Sequence[Row]) -> str:
    lines: list[list[str]] = []
    for row in rows:
        line = [row["geometry"], row["trace"], str(row["concurrency"])]
        for name in (MEAN, MEDIAN):
            line += [f"{row[side][name]:,.1f}" for side in ("hybridrt", "without")]
            line.append(f"{host_ratio(row, name):.2f}")
        lines.append(line)
    heads = ["geometry", "trace", "at a time", "mean with", "without", "ratio"]
    heads += ["median with", "without", "ratio"]
    text = "Host: microseconds of the thread's time a step, with and without the prefix cache. The"
    text += " prompts of lognormal-200 share nothing; the median is of a step in which sequences"
    text += " decode, what comes and goes is in the mean."
    return text + "\n\n" + markdown(heads, lines)


def filled(rows: Sequence[Row]) -> str:
    lines = [
        [row["geometry"], f"{row['hybridrt']['pages']:,}"]
        + [f"{row['hybridrt'][name]:,.1f}" for name in (MEAN, MEDIAN)]
        for row in rows
    ]
    text = "Filled: microseconds a step in a full pool, so that every new page drops another; 16"
    text += " requests at a time, every other prompt a hit."
    heads = ["geometry", "cached pages of tokens", "mean", "median"]
    return text + "\n\n" + markdown(heads, lines)


def best_policy(row: Row) -> str:
    found = row["yardstick"]["online"]
    return max(found, key=lambda name: found[name])


def of_yardstick(row: Row) -> float:
    return row["hybridrt"]["cached_tokens"] / row["yardstick"]["online"][best_policy(row)]


def _clairvoyant(row: Row) -> int:
    return max(row["yardstick"]["clairvoyant"].values())


def of_vllm(row: Row) -> float:
    return row["hybridrt"]["cached_tokens"] / max(1, row["vllm"]["cached_tokens"])


def host_ratio(row: Row, name: str) -> float:
    return row["hybridrt"][name] / row["without"][name]


def _both(row: Row) -> str:
    ideal = row["hybridrt"]["ideal_tokens"]
    return " / ".join(_share(row[side], ideal) for side in ("hybridrt", "vllm"))


def _share(answer: Row, ideal: int) -> str:
    return f"{answer['cached_tokens'] / ideal:.3f}"


def aims(rows: Sequence[Row]) -> str:
    """What was aimed at, and what misses it."""
    lines: list[list[str]] = []
    for test, checks in CHECKS.items():
        of = _of(rows, test)
        for text, miss in checks.items() if of else ():
            missed = [f"{row['geometry']} {why}" for row in of if (why := miss(row, of))]
            lines.append([text, "; ".join(missed) or "yes"])
    return markdown(["aim", "reached, or what misses it"], lines)


Miss = Callable[[Row, Sequence[Row]], str | None]  # what a row misses an aim by


def _miss_hits(row: Row, _: Sequence[Row]) -> str | None:
    share = row["hybridrt"]["cached_tokens"] / row["hybridrt"]["ideal_tokens"]
    return f"{share:.3f} on {row['trace']}" if share < LEAST_HITS[row["trace"]] else None


def _miss_yardstick(row: Row, _: Sequence[Row]) -> str | None:
    share = of_yardstick(row)
    return f"{share:.3f} in {row['cache_memory']}" if share < LEAST_OF_YARDSTICK else None


def _miss_clairvoyant(row: Row, _: Sequence[Row]) -> str | None:
    share = row["hybridrt"]["cached_tokens"] / _clairvoyant(row)
    return f"{share:.3f} in {row['cache_memory']}" if share < LEAST_OF_YARDSTICK else None


def _miss_vllm(row: Row, _: Sequence[Row]) -> str | None:
    least = 1 if row["geometry"] in WITHOUT_STATES else LEAST_OF_VLLM
    return f"{of_vllm(row):.3f} in {row['cache_memory']}" if of_vllm(row) < least else None


def _miss_host(name: str) -> Miss:
    def miss(row: Row, _: Sequence[Row]) -> str | None:
        ratio, where = host_ratio(row, name), f"{row['trace']}, {row['concurrency']} at a time"
        return f"{ratio:.2f} on {where}" if ratio > MOST_HOST else None

    return miss


def _miss_flat(row: Row, rows: Sequence[Row]) -> str | None:
    times = [r["hybridrt"][MEAN] for r in rows if r["geometry"] == row["geometry"]]
    time = row["hybridrt"][MEAN]
    return f"{time} us with {row['pages']:,}" if time > FLAT * times[0] else None


CHECKS: Mapping[str, Mapping[str, Miss]] = {
    "hits": {"at least 0.95 of the ideal on chat and agent, 0.90 on both shared": _miss_hits},
    "pressure": {
        "at least 0.95 of the yardstick, with policies that know the past only": _miss_yardstick,
        "(for comparison: 0.95 of the clairvoyant ones)": _miss_clairvoyant,
        "at least 1.2 times vLLM with states, not below it without": _miss_vllm,
    },
    "host": {
        "at most 1.3 times the host time without it, in the median": _miss_host(MEDIAN),
        "at most 1.3 times the host time without it, in the mean": _miss_host(MEAN),
    },
    "filled": {"no more time a step with more cached pages": _miss_flat},
}


def _of(rows: Sequence[Row], test: str) -> list[Row]:
    return [row for row in rows if row["test"] == test]
