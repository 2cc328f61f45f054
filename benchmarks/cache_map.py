"""What looking at a running engine takes: `llm.cache_map()`, `llm.stats_rows()`, `hybridrt top`.

    python benchmarks/cache_map.py [--json PATH] [--md PATH] [--repeats 200]

Pools without bytes, with the real allocator, page tables and prefix cache. Prompts are admitted,
shared and freed at random until the pool is nearly full, so that pages of all kinds lie between
each other. The time is of the thread, of one call.

What is counted at every step for `llm.stats_rows()` is measured with 64 rows that decode; a row of
it and the file for `hybridrt top`, which are made at most twice a second, with the demo's pool.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from about import machine
from versus_tables import markdown

from hybridrt import LLM, SamplingParams
from hybridrt.cache.cache_map import CacheMap, cache_map
from hybridrt.cache.plan import CachePlan, GroupPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.prefix import make_prefix_cache
from hybridrt.cache.prefix_tree import token_bytes
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.spec import Window
from hybridrt.config import EngineConfig
from hybridrt.engine.scheduler import Row
from hybridrt.introspection.published import Publisher

PAGE_SIZE = 16
NUM_SEQUENCES = 64
AIM = 1.0  # milliseconds
Cuts = Mapping[str, int]  # pages in a slab, of each group
POOLS: Mapping[str, tuple[int, Cuts, int]] = {
    # number of slabs, cuts, kernel blocks in a page
    "one group, 100 slabs of 1,000 pages": (100, {"full": 1000}, 1),
    "one group, 100,000 slabs of one page": (100_000, {"full": 1}, 1),
    "one group, 25,000 slabs of 4 pages": (25_000, {"full": 4}, 1),
    "three groups, 74 slabs of 1,309, 374 and 4 pages": (
        74,
        {"full": 1309, "window": 374, "state": 4},
        1,
    ),
    "three groups, 25,000 slabs of 3, 1 and 1 pages": (
        25_000,
        {"full": 3, "window": 1, "state": 1},
        1,
    ),
    "one group, 100 slabs of 1,000 pages of two kernel blocks": (100, {"full": 1000}, 2),
}


def main() -> None:
    options = _options()
    rows = [measure(name, options.repeats) for name in POOLS]
    result = {"aim_ms": AIM, "repeats": options.repeats, **machine(), "rows": rows}
    result["stats_us"] = measure_stats(options.repeats)
    print(page(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.md:
        options.md.write_text(page(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--md", type=Path)
    return parser.parse_args()


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Times of one pool's map, and what is in it."""
    pool, pages = filled_pool(*POOLS[name])
    times: list[float] = []
    found = cache_map(pool, pages)
    for _ in range(repeats):
        start = time.thread_time()
        found = cache_map(pool, pages)
        times.append(1e3 * (time.thread_time() - start))
    return {
        "pool": name,
        "pages": sum(map(len, found.pages)),
        "sequences": len(found.sequences),
        **_shares(found),
        "median_ms": statistics.median(times),
        "least_ms": min(times),
        "p95_ms": statistics.quantiles(times, n=20)[-1],
    }


def measure_stats(repeats: int) -> dict[str, float]:
    """Median microseconds of what a recorder does at every step, for a row, and for its file."""
    llm = LLM("demo", cache_memory="64MiB")
    recorder = llm.engine.stats_recorder
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    for number in range(NUM_SEQUENCES):
        llm.add_request({"prompt_token_ids": [3, 4, 5 + number % 50]}, params)
    sequences = [*llm.engine._scheduler._waiting.values()]
    rows = [Row(sequence, 3, 4) for sequence in sequences]

    def step() -> None:
        recorder.note_rows(rows, time.monotonic())
        recorder.note_generated(len(rows))
        recorder.note_step()

    def timed(call: Callable[[], object]) -> float:
        times: list[float] = []
        for _ in range(repeats):
            start = time.thread_time()
            call()
            times.append(1e6 * (time.thread_time() - start))
        return statistics.median(times)

    recorder.add_row(time.monotonic())
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        publisher = Publisher({"model": "demo"})
        row, details = recorder.rows[-1], recorder.details()
        found = {
            "every step": timed(step),
            "a row": timed(lambda: recorder.add_row(time.monotonic())),
            "its file": timed(lambda: publisher.write(row, details)),
        }
        publisher.close()
    return found


def _shares(found: CacheMap) -> dict[str, float]:
    sizes, total = found.bytes, found.plan.pool_bytes
    return {"in_use": sizes["in_use"] / total, "cached": sizes["cached"] / total}


def filled_pool(num_slabs: int, cuts: Cuts, blocks: int) -> tuple[Pool, SequencePages]:
    """A pool in which 64 sequences and the prefix cache have nearly all pages."""
    plan = _plan(num_slabs, cuts, blocks)
    pool = Pool(plan, torch.device("meta"))
    pages = SequencePages(pool, make_prefix_cache(pool, EngineConfig(model="none")))
    draw = random.Random(0)
    length = (plan.longest_sequence() or 0) // (NUM_SEQUENCES + NUM_SEQUENCES // 4)
    common = [draw.randrange(1000) for _ in range(length // 4)]
    prompts: dict[str, list[int]] = {}
    for number in range(2 * NUM_SEQUENCES):
        if len(pages) == NUM_SEQUENCES:
            _end_one(pages, prompts, draw)
        prompt = [*common[: draw.choice([0, len(common)])]]
        prompt += [draw.randrange(1000) for _ in range(length - len(prompt))]
        name = f"request-{number}/0"
        prompts[name] = prompt
        while not pages.can_admit(length, match=pages.match(token_bytes(prompt))):
            _end_one(pages, prompts, draw)
        pages.admit(name, length, match=pages.match(token_bytes(prompt)))
        pages.commit(name, length, prompt)
    return pool, pages


def _end_one(pages: SequencePages, prompts: dict[str, list[int]], draw: random.Random) -> None:
    """One goes, and leaves its pages to the cache."""
    name = draw.choice([*pages])
    pages.finish(name, prompts.pop(name))


def _plan(num_slabs: int, cuts: Cuts, blocks: int) -> CachePlan:
    slab_bytes = 16 * blocks
    for count in cuts.values():
        slab_bytes *= count
    groups: list[GroupPlan] = []
    for kind, count in cuts.items():
        size = None if kind == "state" else PAGE_SIZE
        stride = slab_bytes // count
        groups.append(
            GroupPlan(
                name=kind,
                kind=kind,  # pyright: ignore[reportArgumentType]
                layers=(),
                page_size=size,
                kernel_block_size=None if size is None else size // blocks,
                page_bytes=stride,
                page_stride=stride,
                pages_per_slab=count,
                window=Window(4096) if kind == "window" else None,
                sequence_bytes=stride if size is None else 0,
            )
        )
    return CachePlan(slab_bytes, num_slabs, tuple(groups), ())


def page(result: Mapping[str, Any]) -> str:
    """The result as a page."""
    heads = ["pool", "pages", "sequences", "in use", "cached", "median ms", "least ms", "95 % ms"]
    lines = [
        [row["pool"], f"{row['pages']:,}", str(row["sequences"])]
        + [f"{100 * row[name]:.0f} %" for name in ("in_use", "cached")]
        + [f"{row[name]:.2f}" for name in ("median_ms", "least_ms", "p95_ms")]
        for row in result["rows"]
    ]
    slow = [row["pool"] for row in result["rows"] if row["median_ms"] > result["aim_ms"]]
    about = {
        name: result[name]
        for name in result
        if name not in ("rows", "aim_ms", "repeats", "stats_us")
    }
    parts = [
        "# What looking at a running engine takes",
        f"`python benchmarks/cache_map.py`; {result['repeats']} calls of each, time of the thread.",
        ", ".join(f"{name} {value}" for name, value in about.items()),
        f"Aim for `llm.cache_map()`: under {result['aim_ms']:.0f} ms for 100,000 pages. Missed by: "
        f"{', '.join(slow) or 'none'}.",
        markdown(heads, lines),
        f"Stats: {_stats_text(result['stats_us'])}.",
    ]
    return "\n\n".join(parts) + "\n"


def _stats_text(times: Mapping[str, float]) -> str:
    return (
        f"at every step of {NUM_SEQUENCES} rows {times['every step']:.1f} microseconds; at most "
        f"twice a second {times['a row']:.0f} for a row of `llm.stats_rows()`, and where "
        f"`publish_stats` is on {times['its file']:.0f} for the file that `hybridrt top` reads"
    )


if __name__ == "__main__":
    main()
