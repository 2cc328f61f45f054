"""Requests through an `LLM`, step by step, and what they must give."""

import pickle
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hybridrt import LLM, SamplingParams
from hybridrt.request import RequestOutput
from tests.oracle import BY_NAME, tiny_checkpoint
from tests.shared_folder import made_once

LONGEST = 52  # tokens of the longest sequence below, prompt and output together
GREEDY = SamplingParams(
    temperature=0.0, max_tokens=11, ignore_eos=True, logprobs=2, prompt_logprobs=0
)
DRAWN = SamplingParams(temperature=0.8, seed=3, max_tokens=11, ignore_eos=True, logprobs=0)
MOST_STEPS = 20_000
LARGEST_ERROR = 3e-4
"""Of a log-probability, in nats, between two ways of running the same request.

Rounding in float32 reaches 5e-5 in these models, a mistake at one token 0.1.
"""


@dataclass(frozen=True)
class Job:
    """A request, and what it gives alone."""

    prompt: tuple[int, ...]
    params: SamplingParams
    expected: RequestOutput


RECORDED = (
    "llama-grouped-heads",
    "bamba-two-groups",
    "hybrid_stack-every-kind-of-cache",
)
"""Rows whose decode steps are recorded where nobody says more: recording is half of a short run.

For every row tests/engine/test_taped_decode.py compares recorded steps with others.
"""


def open_llm(name: str, **options: Any) -> LLM:
    """The checkpoint of that row, in float32, with freed pages poisoned."""
    choices: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "max_model_len": LONGEST,
        "cache_memory": "2MiB",
        "poison_freed_pages": True,
        "record_decode": name in RECORDED,
        **options,
    }
    return LLM(str(tiny_checkpoint(name)), **choices)


@cache
def jobs(name: str, device: str = "cpu") -> Mapping[str, Job]:
    """Requests of unlike lengths, each run in one piece and alone, once for all processes."""

    def make(folder: Path) -> None:
        kinds = ((1, GREEDY), (9, GREEDY), (12, DRAWN), (17, GREEDY), (41, GREEDY))
        found = {f"job-{size}": _job(name, size, params, device) for size, params in kinds}
        (folder / "jobs").write_bytes(pickle.dumps(found))

    return pickle.loads((made_once(f"{name}-{device}-jobs", make) / "jobs").read_bytes())


def _job(name: str, length: int, params: SamplingParams, device: str) -> Job:
    """With a prompt after which no token is nearly tied with another."""
    draw = torch.Generator().manual_seed(zlib.crc32(name.encode()) + length)
    vocab_size = BY_NAME[name].config["vocab_size"]
    while True:
        prompt = tuple(torch.randint(vocab_size, (length,), generator=draw).tolist())
        (output,) = open_llm(name, device=device).generate([list(prompt)], params)
        if not params.greedy or _smallest_gap(output) > 10 * LARGEST_ERROR:
            return Job(prompt, params, output)


def _smallest_gap(output: RequestOutput) -> float:
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    best_two = (sorted((entry.logprob for entry in of.values()), reverse=True) for of in logprobs)
    return min(first - second for first, second, *_ in best_two)


def all_at_once(name: str, device: str = "cpu") -> dict[str, tuple[int, Job]]:
    """All jobs of a row, at the first step."""
    return {request_id: (0, job) for request_id, job in jobs(name, device).items()}


def run(
    llm: LLM,
    requests: Mapping[str, tuple[int, Job]],
    aborts: Mapping[str, int] | None = None,
    after_step: Callable[[], None] | None = None,
) -> dict[str, RequestOutput]:
    """Adds each request at its step and steps until all have finished.

    `aborts` gives the steps at which some of them are dropped.
    """
    aborts = aborts or {}
    finished: dict[str, RequestOutput] = {}
    step, last = 0, max([0, *(at for at, _ in requests.values()), *aborts.values()])
    while step <= last or llm.has_unfinished:
        assert step < MOST_STEPS, "the engine goes round without finishing anything"
        for request_id, (at, job) in requests.items():
            if at == step:
                llm.add_request(list(job.prompt), job.params, request_id)
        for request_id, at in aborts.items():
            if at == step:
                llm.abort(request_id)
        for output in llm.step():
            if output.finished:
                finished[output.request_id] = output
        if after_step is not None:
            after_step()
        step += 1
    return finished


def assert_same(given: RequestOutput, job: Job) -> None:
    """The same tokens as alone, with the same logprobs, of the prompt too."""
    expected = job.expected
    assert given.outputs[0].token_ids == expected.outputs[0].token_ids
    for ours, alone in (
        (given.outputs[0].logprobs, expected.outputs[0].logprobs),
        (given.prompt_logprobs, expected.prompt_logprobs),
    ):
        assert (ours is None) == (alone is None)
        for our, lone in zip(ours or (), alone or (), strict=True):
            assert (our is None) == (lone is None)
            for token in (our or {}).keys() & (lone or {}).keys():
                assert our is not None and lone is not None
                assert abs(our[token].logprob - lone[token].logprob) <= LARGEST_ERROR


def assert_all_same(outputs: Mapping[str, RequestOutput], name: str, device: str = "cpu") -> None:
    """Every job of the row has finished, as it does alone."""
    for request_id, job in jobs(name, device).items():
        assert_same(outputs[request_id], job)


def leave_room_for(llm: LLM, num_slabs: int) -> None:
    """Takes all other slabs out of the pool, as a tenant that never leaves."""
    groups = llm.plan.groups
    taken = llm.plan.num_slabs - num_slabs
    counts = [taken * groups[0].pages_per_slab, *(0 for _ in groups[1:])]
    llm.engine.pool.allocate(counts)


def free_slabs(llm: LLM) -> int:
    """Slabs that no running request holds."""
    return llm.engine.pool.allocator.num_unused_slabs
