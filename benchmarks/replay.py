"""Replays a trace through the real scheduler, cache and batches, with no model and no bytes.

    python benchmarks/replay.py --geometry benchmarks/geometries/kimi-linear-48b.json \
        --trace T.jsonl --cache-memory 8GiB --concurrency 64 [--json]

Only the model and the sampler are replaced: the sampler gives the trace's tokens. Printed
are, for the whole trace:

    prompt_tokens     of all requests
    cached_tokens     prompt tokens that the cache had when a request first ran
    ideal_tokens      the most that could have been there; see `traces.ideal_tokens`
    peak_running      the most requests running at once
    mean_running      their mean over the steps in which others wait; null: none ever did
    preemptions       how often a running request lost its pages
    steps             steps in which something ran
    host_seconds      in schedule, commit and the building of batches
    host_us_per_step  the same per step
    cpu_us_per_step   the same in time of the thread, which other programs disturb less;
                      `median_cpu_us_per_step` of the middle one of all steps
"""

import argparse
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from traces import TraceRequest, ideal_tokens, read_trace

from hybridrt.cache.plan import CachePlan
from hybridrt.cache.planner import plan
from hybridrt.cache.pool import Pool
from hybridrt.cache.prefix import make_prefix_cache
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.config import EngineConfig
from hybridrt.engine.batch_builder import BatchBuilder
from hybridrt.engine.detokenizer import Detokenizer
from hybridrt.engine.geometry import load_geometry
from hybridrt.engine.scheduler import Row, Scheduler
from hybridrt.engine.sequence import Sequence as RunningSequence
from hybridrt.request import Request, SamplingParams

P = ParamSpec("P")
T = TypeVar("T")


class Replay:
    """A scheduler, the requests in it, and what was seen of them.

    Of every step, `running`, `others_wait` and `held_bytes` say how it stood behind the
    scheduling, and `cpu_seconds` what the step took of the thread's time.
    """

    def __init__(self, cache_plan: CachePlan, config: EngineConfig) -> None:
        self.pool = Pool(cache_plan, torch.device("meta"))  # all but the bytes
        pages = SequencePages(self.pool, make_prefix_cache(self.pool, config))
        self.scheduler = Scheduler(config, pages)
        self._builder = BatchBuilder(pages, cache_plan.groups, torch.device("cpu"))
        self._longest = cache_plan.longest_sequence()
        self._outputs: dict[str, list[int]] = {}  # of unfinished requests
        self._never_ran: set[str] = set()
        self._cpu = 0.0
        self.running: list[int] = []
        self.others_wait: list[bool] = []
        self.held_bytes: list[int] = []
        self.cpu_seconds: list[float] = []
        self.host_seconds = 0.0
        self.cached_tokens = 0
        self.preemptions = 0

    @property
    def num_unfinished(self) -> int:
        return len(self._outputs)

    def add(self, request: TraceRequest) -> None:
        """Puts a request in line.

        Raises:
            ValueError: it doesn't fit, even alone.
        """
        if self._longest is not None and request.num_tokens > self._longest:
            raise ValueError(
                f"request {request.id!r} has {request.num_tokens:,} tokens; "
                f"the cache holds sequences of at most {self._longest:,}"
            )
        self._outputs[request.id] = request.output.tolist()
        self._never_ran.add(request.id)
        self.scheduler.add(_sequence(request))

    def step(self) -> list[RunningSequence]:
        """One step of an engine; returns the sequences that it finished."""
        before = self._cpu
        rows = self._timed(self._schedule)
        assert rows, "every request fits alone, so one of them can always run"
        self._watch(rows)
        tokens = [self._next_token(row) for row in rows]
        finished = self._timed(self.scheduler.commit, rows, tokens)
        self.cpu_seconds.append(self._cpu - before)
        for sequence in finished:
            self.preemptions += sequence.num_preemptions
            assert sequence.output_token_ids == self._outputs.pop(sequence.sequence_id)
        return finished

    def _schedule(self) -> list[Row]:
        rows = self.scheduler.schedule()
        self._builder.build(rows)
        return rows

    def _timed(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        cpu = time.thread_time()  # around the other, since asking for it takes long itself
        wall = time.perf_counter()
        result = call(*args, **kwargs)
        self.host_seconds += time.perf_counter() - wall
        self._cpu += time.thread_time() - cpu
        return result

    def _watch(self, rows: Sequence[Row]) -> None:
        self.running.append(self.scheduler.num_running)
        self.others_wait.append(self.scheduler.num_waiting > 0)
        self.held_bytes.append(
            sum(
                group.page_stride * self.pool.allocator.num_live_pages(index)
                for index, group in enumerate(self.pool.plan.groups)
            )
        )
        for row in rows:
            if row.sequence.sequence_id in self._never_ran:
                self._never_ran.remove(row.sequence.sequence_id)
                self.cached_tokens += row.start

    def _next_token(self, row: Row) -> int | None:
        if not row.samples:
            return None
        return self._outputs[row.sequence.sequence_id][row.sequence.num_output_tokens]


def _sequence(request: TraceRequest) -> RunningSequence:
    prompt = tuple(request.prompt.tolist())
    params = SamplingParams(temperature=0, max_tokens=len(request.output), ignore_eos=True)
    return RunningSequence(
        sequence_id=request.id,
        request=Request(request.id, prompt, params),
        index=0,
        seed=0,
        max_tokens=request.num_tokens,
        detokenizer=Detokenizer(None, prompt, params),
    )


def replay(
    cache_plan: CachePlan,
    config: EngineConfig,
    requests: Sequence[TraceRequest],
    concurrency: int = 1,
) -> Replay:
    """Runs a whole trace, with up to `concurrency` requests in the engine at a time.

    Raises:
        ValueError: a request doesn't fit, even alone.
    """
    run, coming = Replay(cache_plan, config), deque(requests)
    while coming or run.num_unfinished:
        while coming and run.num_unfinished < concurrency:
            run.add(coming.popleft())
        run.step()
    return run


def summary(run: Replay, requests: Sequence[TraceRequest]) -> dict[str, Any]:
    """What is printed of a replay that has ended."""
    steps = len(run.running)
    loaded = [n for n, wait in zip(run.running, run.others_wait, strict=True) if wait]
    return {
        "prompt_tokens": sum(len(request.prompt) for request in requests),
        "cached_tokens": run.cached_tokens,
        "ideal_tokens": ideal_tokens(requests),
        "peak_running": max(run.running),
        "mean_running": round(float(np.mean(loaded)), 1) if loaded else None,
        "preemptions": run.preemptions,
        "steps": steps,
        "host_seconds": round(run.host_seconds, 4),
        "host_us_per_step": round(1e6 * run.host_seconds / steps, 1),
        "cpu_us_per_step": round(1e6 * sum(run.cpu_seconds) / steps, 1),
        "median_cpu_us_per_step": round(1e6 * float(np.median(run.cpu_seconds)), 1),
        "notes": _notes(run.pool.plan),
    }


def _notes(cache_plan: CachePlan) -> list[str]:
    slabs = f"{cache_plan.num_slabs} slabs of {cache_plan.slab_bytes:,} bytes"
    pages = [
        f"{group.name}: {group.pages_per_slab} pages a slab, {group.padding_percent:.2f} % padding"
        for group in cache_plan.groups
    ]
    return [slabs, *pages, *cache_plan.notes]


def make_plan(path: Path, config: EngineConfig) -> CachePlan:
    """The plan of a geometry in the config's `cache_memory`."""
    assert config.cache_memory is not None
    return plan(load_geometry(path, config).layers, config, config.cache_memory)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--geometry", type=Path, required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--cache-memory", default="8GiB")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--concurrency", type=int, default=1, help="requests in the engine")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser.parse_args()


def main() -> None:
    args = _arguments()
    try:
        config = EngineConfig(
            model=str(args.geometry),
            cache_memory=args.cache_memory,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            page_size=args.page_size,
            enable_prefix_caching=not args.no_prefix_caching,
        )
        requests = read_trace(args.trace)
        run = replay(make_plan(args.geometry, config), config, requests, args.concurrency)
    except (OSError, ValueError) as error:
        raise SystemExit(f"replay: {error}") from None
    result = summary(run, requests)
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        for line in value if name == "notes" else [value]:
            print(f"{name:18} {line}")


if __name__ == "__main__":
    main()
