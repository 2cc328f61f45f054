"""Time to first token, a hit against a cold run, and what the prefix cache costs without hits.

    python benchmarks/first_token.py [--models demo bamba jamba] [--runs 15]

Of each model, all in one process, the runs of what is compared taking turns:

    first token   a prompt of 1,500 tokens with the prefix cache: `cold` shares nothing, `hit` is
                  one that was there before, and `more` goes on behind it with 32 tokens of its
                  own. `hit` and `more` each come right behind a cold prompt, which leaves the
                  processor's own caches full of other things; `next` is another such as `more`
                  right behind `more`
    prefill       a prompt of 1,532 tokens with the prefix cache (pages taken in, states exported
                  every 256 tokens) and without
    throughput    8 prompts of 256 tokens and 32 output tokens each, nothing shared, with the
                  prefix cache and without

Times are those of the process on one thread, which other programs disturb less than those of
the clock. Compared are medians; for with and without, the median ratio of neighbouring runs.
It writes first_token.md and .json.
"""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from about import machine
from models import MODELS, make_checkpoint
from versus_tables import markdown

from hybridrt import LLM, SamplingParams

SHARED, OWN = 1500, 32
BATCH, PROMPT, OUTPUT = 8, 256, 32
HERE = Path(__file__).resolve().parent
COMMAND = shlex.join(["python", "benchmarks/first_token.py", *sys.argv[1:]])
WARM = ("hit", "more", "next")
LEAST_SPEEDUP, MOST_COST = 10, 0.02

Row = dict[str, Any]


class Pair:
    """The same model with the prefix cache and without, and prompts that were never seen."""

    def __init__(self, path: str) -> None:
        self._random = np.random.default_rng(0)
        options: dict[str, Any] = {"cache_memory": "1GiB", "max_num_batched_tokens": 2048}
        self.on = LLM(path, **options)
        self.off = LLM(path, **options, enable_prefix_caching=False)

    def tokens(self, count: int) -> list[int]:
        """Random tokens that every model here has."""
        return self._random.integers(0, 256, count).tolist()


def first_token(pair: Pair, runs: int) -> Row:
    """Seconds to the first token, and how many tokens were cached."""
    shared = pair.tokens(SHARED)
    for _ in range(3):  # the second leaves a checkpoint where the shared tokens end
        _seconds(pair.on, [shared + pair.tokens(OWN)], 1)
    _seconds(pair.on, [shared], 1)
    times: dict[str, list[float]] = {}
    cached: dict[str, int] = {}
    for _ in range(runs):
        for name, own in [("cold", None), ("hit", 0), ("cold", None), ("more", OWN), ("next", OWN)]:
            prompt = pair.tokens(SHARED) if own is None else shared + pair.tokens(own)
            seconds, cached[name] = _seconds(pair.on, [prompt], 1)
            times.setdefault(name, []).append(seconds)
    medians = {name: statistics.median(found) for name, found in times.items()}
    return medians | {f"cached_{name}": tokens for name, tokens in cached.items()}


def cost(pair: Pair, runs: int, prompts: Callable[[], list[list[int]]], output: int) -> Row:
    """Medians of both, and the median ratio of with to without, run by run."""
    with_cache, without, ratios = [], [], []
    for number in range(runs + 1):
        batch = prompts()
        sides = [(pair.on, with_cache), (pair.off, without)]
        for llm, found in sides if number % 2 else reversed(sides):
            seconds, cached = _seconds(llm, batch, output)
            assert not cached, "nothing should be shared here"
            found.append(seconds)
        ratios.append(with_cache[-1] / without[-1])
    times = {"with": with_cache[1:], "without": without[1:]}  # the first is to warm up
    medians = {name: statistics.median(found) for name, found in times.items()}
    return medians | {"ratio": statistics.median(ratios[1:])}


def _seconds(llm: LLM, prompts: list[list[int]], output: int) -> tuple[float, int]:
    """How long prompts take to the last of `output` tokens, and the tokens they had cached."""
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    start, cached = time.process_time(), 0
    for prompt in prompts:
        llm.add_request(prompt, params)
    while llm.has_unfinished:
        cached += sum(o.num_cached_tokens or 0 for o in llm.step() if o.finished)
    return time.process_time() - start, cached


def measure(model: str, path: str, runs: int) -> Row:
    """All that is measured of a model."""
    pair = Pair(path)
    prefill = cost(pair, runs, lambda: [pair.tokens(SHARED + OWN)], 1)
    batch = cost(pair, runs, lambda: [pair.tokens(PROMPT) for _ in range(BATCH)], OUTPUT)
    first = first_token(pair, runs)
    return {"model": model, "first_token": first, "prefill": prefill, "throughput": batch}


def document(rows: list[Row], about: Mapping[str, Any]) -> str:
    """The tables as Markdown."""
    head = [f"`{COMMAND}`", ", ".join(f"{name} {value}" for name, value in about.items())]
    firsts = [[row["model"], *_first_cells(row["first_token"])] for row in rows]
    heads = ["model", "cold, ms"]
    heads += [head for name in WARM for head in (f"{name}, ms", "ratio", "cached")]
    first = (
        f"First token of a prompt of {SHARED:,} tokens, cold and when it comes again (aim: a hit"
    )
    first += (
        f" {LEAST_SPEEDUP} times sooner), and of one that goes on with {OWN} tokens of its own,"
    )
    first += " behind a cold prompt and behind another such."
    costs = [
        [row["model"], what, *_cost_cells(row[what])]
        for row in rows
        for what in ("prefill", "throughput")
    ]
    about_costs = f"With the prefix cache and without, nothing shared (aim: within {MOST_COST:.0%})"
    about_costs += f": a prefill of {SHARED + OWN:,} tokens, exports every 256 included; {BATCH}"
    about_costs += f" prompts of {PROMPT} tokens with {OUTPUT} output tokens each."
    cost_heads = ["model", "what", "with, ms", "without, ms", "with costs"]
    parts = [*head, first, markdown(heads, firsts), about_costs, markdown(cost_heads, costs)]
    return "\n\n".join(parts) + "\n"


def _first_cells(row: Row) -> list[str]:
    cells = [f"{1000 * row['cold']:,.1f}"]
    for name in WARM:
        cells += [f"{1000 * row[name]:,.1f}", f"{row['cold'] / row[name]:.1f}"]
        cells.append(f"{row[f'cached_{name}']:,}")
    return cells


def _cost_cells(row: Row) -> list[str]:
    times = [f"{1000 * row[name]:,.1f}" for name in ("with", "without")]
    return [*times, f"{100 * (row['ratio'] - 1):+.1f} %"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = ["demo", *MODELS]
    parser.add_argument("--models", nargs="+", default=["demo", "bamba", "jamba"], choices=known)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "first_token.md")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        for model in args.models:
            path = "demo" if model == "demo" else str(make_checkpoint(model, Path(directory)))
            rows.append(measure(model, path, args.runs))
    about = machine() | {"runs": args.runs}
    args.out.write_text(document(rows, about))
    data = {"command": COMMAND, "machine": about, "rows": rows}
    args.out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    print(args.out.read_text())


if __name__ == "__main__":
    main()
