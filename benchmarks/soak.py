"""Runs many requests through scheduler and prefix cache, and reads the cache at every step.

    OMP_NUM_THREADS=1 python benchmarks/soak.py [--requests 20000] [--seed 0]

Two stacks run, one after the other: all kinds of layers, and none with windows, where what a
sequence leaves is folded. The pool has room for eight of the longest sequences and is always full.
Requests share prefixes, come under some salts, and are aborted, preempted, forked and made to fail
at random. The model writes what it is given into its pages, and every token and state that a step
reads is compared; every 1,000 steps the whole cache is read and counted. The output of every
tenth request is compared with that of an isolated run. See tests/reuse/soak.py.
It writes soak.md and .json: what happened, how much was reused, and in each fifth of the run
the most that each structure held, the most objects that Python had and the most memory of the
process. Whatever is wrong raises.
"""

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from about import machine
from versus_tables import markdown

sys.path.insert(0, str(Path(__file__).parents[1]))

from hybridrt.cache import prefix
from tests.reuse.cache_checks import assert_all
from tests.reuse.soak import Soak, full_reader

HERE = Path(__file__).resolve().parent
COMMAND = "OMP_NUM_THREADS=1 python benchmarks/soak.py"
PARTS = 5
CHECKED_EVERY = 1_000  # steps
MEASURED_EVERY = 200  # steps
MOST_GHOSTS = 2_000  # so few that they are all there in the first fifth

Row = dict[str, Any]


def run(num_requests: int, seed: int, *, with_windows: bool) -> Row:
    """What happened, and the most of everything in each part of the run."""
    prefix.MOST_GHOSTS = MOST_GHOSTS
    process, started = psutil.Process(), time.perf_counter()
    soak = Soak(num_requests, seed, full_reader(with_windows=with_windows))
    most: list[Counter[str]] = [Counter() for _ in range(PARTS)]
    free_slabs: list[int] = []
    allocator = soak.reader.pool.allocator
    step = 0
    for step, gone in enumerate(soak.run(), 1):
        part = min(PARTS - 1, PARTS * gone // num_requests)
        most[part] |= Counter(soak.sizes())
        if part:
            free_slabs.append(allocator.num_free_slabs)
        if step % MEASURED_EVERY == 0:
            gc.collect()
            objects = {"objects in Python": sys.getallocatedblocks()}
            most[part] |= Counter(objects | {"memory, KiB": process.memory_info().rss // 1024})
        if step % CHECKED_EVERY == 0:
            assert_all(soak.reader)
    return {
        "stack": "all kinds of layers" if with_windows else "no windows",
        "requests": num_requests,
        "steps": step,
        "seconds": round(time.perf_counter() - started, 1),
        "happened": dict(soak.happened),
        "notes": dict(soak.notes),
        "reused_percent": round(100 * soak.cached_tokens / soak.prompt_tokens, 1),
        "slabs": allocator.num_slabs,
        "mean_free_slabs": round(sum(free_slabs) / max(1, len(free_slabs)), 2),
        "most": [dict(part) for part in most],
    }


def document(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """The tables as Markdown."""
    explained = (
        f"The most of everything in each fifth of a run. Nodes, ghosts (dropped nodes that are "
        f"remembered, at most {MOST_GHOSTS:,} here), branches (what is folded) and roots are "
        f"bounded by settings, all else by the pool. Objects and memory count the whole process "
        f"with the test's own records, behind a collection of garbage every {MEASURED_EVERY} steps."
    )
    head = [f"`{COMMAND}`", ", ".join(f"{name} {value}" for name, value in about.items())]
    return "\n\n".join([*head, explained, *map(_tables, rows)]) + "\n"


def _tables(row: Row) -> str:
    happened = row["happened"]
    text = (
        f"{row['requests']:,} requests in {row['steps']:,} steps and {row['seconds']} s: "
        f"{happened['abort']:,} aborted, {happened['preempt']:,} preempted, {happened['fork']:,} "
        f"forked, {happened['failed steps']:,} steps failed; {happened['compared']:,} outputs were "
        f"those of isolated runs. {row['reused_percent']} % of the prompts' tokens were reused. "
        f"Of {row['slabs']} slabs {row['mean_free_slabs']} were free on the average."
    )
    notes = sorted(row["notes"].items(), key=lambda note: -note[1])
    fifths = ["first", "second", "third", "fourth", "last"]
    names = [*row["most"][0]]
    cells = [[name, *(f"{part.get(name, 0):,}" for part in row["most"])] for name in names]
    parts = [
        f"## {row['stack'].capitalize()}",
        text,
        markdown(["note", "requests"], [[name, f"{count:,}"] for name, count in notes]),
        markdown(["most", *fifths], cells),
    ]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "soak.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    stacks = (True, False)
    rows = [run(args.requests, args.seed, with_windows=windows) for windows in stacks]
    about = machine()
    args.out.write_text(document(rows, about))
    data = {"command": COMMAND, "machine": about, "rows": rows}
    args.out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    print(args.out.read_text())


if __name__ == "__main__":
    main()
