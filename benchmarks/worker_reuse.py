"""What `reuse.py` measures of hybridrt and of the yardstick. See `workers.py`."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import yardstick
from exact_cache import Paths, Sizes
from replay import Replay, make_plan, replay
from traces import TraceRequest, read_trace
from worker_hybridrt import config_of, replay_of
from workers import Answer, Job, serve

from hybridrt.config import EngineConfig

FILL = 1024  # tokens of what fills the cache, a request
PROMPT, OUTPUT = 256, 16  # of the requests that are timed
AGAIN = 40  # requests after which a prompt comes again
SIDE_BY_SIDE = 16
TIMED = 400


def yardstick_of(job: Job) -> Answer:
    """Tokens that a cache of exact bytes finds, under every policy."""
    config = EngineConfig(model=job["geometry"], cache_memory=job["cache_memory"])
    assert config.cache_memory is not None
    sizes = Sizes.of(make_plan(Path(job["geometry"]), config))
    found = yardstick.all_policies(_paths(job["trace"]), sizes, config.cache_memory)
    return {
        "online": {name: found[name] for name in yardstick.ONLINE},
        "clairvoyant": {name: found[name] for name in yardstick.CLAIRVOYANT},
    }


@lru_cache(maxsize=1)
def _paths(trace: str) -> Paths:
    return Paths(read_trace(Path(trace)))


def filled_of(job: Job) -> Answer:
    """Time of a step in a pool that is full of cached pages, so many of tokens."""
    path, pages = Path(job["geometry"]), job["pages"]
    config = EngineConfig(model=str(path), cache_memory=8 * 2**30, max_num_seqs=SIDE_BY_SIDE)
    plan = make_plan(path, config)
    per_fill = plan.slabs_for(FILL) * plan.slab_bytes  # rounded up for each, so it's a bit more
    memory = pages * config.page_size // FILL * per_fill + plan.slab_bytes * 64
    config = config.model_copy(update={"cache_memory": memory})
    run = Replay(make_plan(path, config), config)
    _run(run, _fills(pages * config.page_size // FILL * 5 // 4), 1)
    steps: list[np.ndarray] = []
    for number in range(job["repeats"]):
        start = len(run.cpu_seconds)
        _run(run, _timed(number), SIDE_BY_SIDE)
        steps.append(np.array(run.cpu_seconds[start:]))
    cached = [g for g, group in enumerate(run.pool.plan.groups) if group.page_size]
    allocator = run.pool.allocator
    return {
        "pages": sum(allocator.num_cached_pages(g) for g in cached),
        "cpu_us_per_step": round(1e6 * min(float(s.mean()) for s in steps), 1),
        "median_cpu_us_per_step": round(1e6 * min(float(np.median(s)) for s in steps), 1),
    }


def host_of(job: Job) -> Answer:
    """Time of the thread per step with and without the prefix cache.

    The replays take turns. Each step does the same in every one of them, so its least time is
    what it takes where nothing else disturbs it.
    """
    requests = read_trace(Path(job["trace"]))
    least: dict[str, np.ndarray] = {}
    for _ in range(job["repeats"]):
        for name, caching in {"hybridrt": True, "without": False}.items():
            config = config_of({**job, "enable_prefix_caching": caching})
            cache_plan = make_plan(Path(job["geometry"]), config)
            steps = np.array(replay(cache_plan, config, requests, job["concurrency"]).cpu_seconds)
            least[name] = np.minimum(least.get(name, steps), steps)
    return {
        name: {
            "cpu_us_per_step": round(1e6 * float(steps.mean()), 1),
            "median_cpu_us_per_step": round(1e6 * float(np.median(steps)), 1),
        }
        for name, steps in least.items()
    }


def _run(run: Replay, requests: Iterator[TraceRequest], concurrency: int) -> None:
    for request in requests:
        while run.num_unfinished >= concurrency:
            run.step()
        run.add(request)
    while run.num_unfinished:
        run.step()


def _fills(count: int) -> Iterator[TraceRequest]:
    random = np.random.default_rng(0)
    for number in range(count):
        yield TraceRequest(f"f{number}", random.integers(100, 100_000, FILL), np.array([1]))


def _timed(seed: int) -> Iterator[TraceRequest]:
    """Every other prompt is one of before again."""
    random, prompts = np.random.default_rng(1 + seed), []
    for number in range(TIMED):
        is_new = number % 2 == 0 or number < AGAIN
        prompts.append(random.integers(100, 100_000, PROMPT) if is_new else prompts[-AGAIN])
        yield TraceRequest(f"t{seed}.{number}", prompts[-1], np.arange(OUTPUT))


if __name__ == "__main__":
    serve({"replay": replay_of, "yardstick": yardstick_of, "host": host_of, "filled": filled_of})
