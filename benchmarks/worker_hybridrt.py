"""hybridrt's side of a comparison: what a plan holds, and replays. See `workers.py`."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from replay import make_plan, replay, summary
from traces import TraceRequest, read_trace
from workers import LENGTHS, Answer, Job, serve

from hybridrt.cache.plan import CachePlan
from hybridrt.config import EngineConfig

TENTHS = 10


def plan_of(job: Job) -> Answer:
    """Groups, slabs, and what one decoding request holds and needs."""
    config, path = config_of(job), Path(job["geometry"])
    make_plan(path, config)  # once to warm up
    start = time.perf_counter()
    cache_plan = make_plan(path, config)
    seconds = time.perf_counter() - start
    names = ("name", "kind", "page_size", "page_bytes", "page_stride", "pages_per_slab", "parts")
    return {
        "slab_bytes": cache_plan.slab_bytes,
        "num_slabs": cache_plan.num_slabs,
        "plan_ms": round(1000 * seconds, 1),
        "groups": [
            {name: getattr(group, name) for name in names}
            | {"layers": len(group.layers), "padding_percent": round(group.padding_percent, 3)}
            for group in cache_plan.groups
        ],
        "one_request": [_one_request(cache_plan, config, tokens) for tokens in LENGTHS],
        "notes": list(cache_plan.notes),
    }


def _one_request(cache_plan: CachePlan, config: EngineConfig, tokens: int) -> dict[str, Any]:
    """Counted in the pool, in the decode step that computes the last of `tokens` tokens.

    The pool has as many slabs as that takes.
    """
    slabs = max(cache_plan.num_slabs, cache_plan.slabs_for(tokens + 1))
    cache_plan = replace(cache_plan, num_slabs=slabs)
    prompt, output = np.zeros(tokens - 1, np.int64), np.zeros(2, np.int64)
    run = replay(cache_plan, config, [TraceRequest("r0", prompt, output)])
    held, needed = run.held_bytes[-1], cache_plan.bytes_for(tokens)
    beyond = round(100 * (held - needed) / held, 3)
    return {"tokens": tokens, "held": held, "needed": needed, "beyond_percent": beyond}


def replay_of(job: Job) -> Answer:
    """A trace from a file."""
    config, requests = config_of(job), _read(job["trace"])
    run = replay(make_plan(Path(job["geometry"]), config), config, requests, job["concurrency"])
    return summary(run, requests)


def flat_of(job: Job) -> Answer:
    """Time of the thread per step: by tenth of a long run, and by size of the pool."""
    seconds = _seconds_of_steps(job, job["cache_memory"], job["requests"])
    by_memory = {
        memory: _seconds_of_steps(job, memory, job["requests"] // TENTHS)
        for memory in job["memories"]
    }
    return {
        "cpu_us_by_tenth": [_median_us(part) for part in np.array_split(seconds, TENTHS)],
        "cpu_us_by_memory": {memory: _median_us(part) for memory, part in by_memory.items()},
    }


def _seconds_of_steps(job: Job, memory: str, num_requests: int) -> np.ndarray:
    config = config_of({**job, "cache_memory": memory})
    cache_plan = make_plan(Path(job["geometry"]), config)
    requests = list(_equal_requests(num_requests))
    return np.array(replay(cache_plan, config, requests, job["concurrency"]).cpu_seconds)


def _median_us(seconds: np.ndarray) -> float:
    return round(1e6 * float(np.median(seconds)), 1)


def _equal_requests(count: int) -> Iterator[TraceRequest]:
    prompt, output = np.arange(100, 164), np.arange(100, 116)
    return (TraceRequest(f"r{number}", prompt, output) for number in range(count))


@lru_cache(maxsize=1)
def _read(path: str) -> list[TraceRequest]:
    return read_trace(Path(path))


def config_of(job: Job) -> EngineConfig:
    """The engine's choices that a job names."""
    names = ("cache_memory", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching")
    chosen = {name: job[name] for name in names if name in job}
    return EngineConfig(model=job["geometry"], **chosen)


if __name__ == "__main__":
    serve({"plan": plan_of, "replay": replay_of, "flat": flat_of})
