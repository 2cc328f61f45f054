"""Replaying traces: the tokens that a trace stands for, and what a replay says of them."""

import importlib
import json
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
GEOMETRIES = sorted((BENCHMARKS / "geometries").glob("*.json"))
KEYS = [
    *("prompt_tokens", "cached_tokens", "ideal_tokens", "peak_running", "mean_running"),
    *("preemptions", "steps", "host_seconds", "host_us_per_step", "cpu_us_per_step"),
    *("median_cpu_us_per_step", "notes"),
]
TINY = {
    "name": "tiny",
    "layers": [
        {"kind": "attention", "num_kv_heads": 1, "head_dim": 8, "dtype": "bfloat16"},
        {"kind": "attention", "num_kv_heads": 1, "head_dim": 8, "dtype": "bfloat16", "window": 20},
        {"kind": "state", "states": [["ssm_state", [16, 16], "float32"]], "repeat": 2},
    ],
}


def _import(name: str) -> ModuleType:
    """A module of the folder of benchmarks, which is no package."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


traces = _import("traces")
replay = _import("replay")


def _trace(folder: Path, *rows: dict[str, Any]) -> Path:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def _row(number: int, prompt: int, output: int) -> dict[str, Any]:
    return {"id": f"r{number}", "prompt": [[number, prompt]], "output": [1000 + number, output]}


def _requests(sequences: list[tuple[list[int], list[int]]]) -> list[Any]:
    return [
        traces.TraceRequest(f"r{i}", np.array(prompt), np.array(output))
        for i, (prompt, output) in enumerate(sequences)
    ]


def _make_plan(folder: Path, memory: int, **options: Any) -> tuple[Any, Any]:
    file = folder / "tiny.json"
    file.write_text(json.dumps(TINY))
    config = replay.EngineConfig(model="tiny", cache_memory=memory, **options)
    return replay.make_plan(file, config), config


def test_a_segment_is_the_head_of_its_seeds_stream(tmp_path):
    row = {"id": "a", "prompt": [[7, 3], [8, 2], [7, 1]], "output": [9, 4]}
    (request,) = traces.read_trace(_trace(tmp_path, row))
    stream = {s: np.random.default_rng(s).integers(100, 100000, size=65536) for s in (7, 8, 9)}
    assert request.prompt.tolist() == [*stream[7][:3], *stream[8][:2], stream[7][0]]
    assert request.output.tolist() == stream[9][:4].tolist()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "a", "prompt": [[7, 65537]], "output": [1, 1]}, r"line 2: .*length 65537 of segm"),
        ({"id": "a", "prompt": [[7, 3]]}, r"line 2: KeyError\('output'\)"),
        ({"id": "a", "prompt": [[7, 0]], "output": [1, 1]}, r"line 2: .*at least one token"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        traces.read_trace(_trace(tmp_path, _row(0, 3, 1), row))


_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(st.tuples(_tokens, _tokens), max_size=8))
def test_ideal_tokens_are_the_longest_prefixes_of_all_that_came_before(sequences):
    expected = 0
    for number, (prompt, _) in enumerate(sequences):
        shared = [
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, a + b)))  # noqa: B905
            for a, b in sequences[:number]
        ]
        expected += min(max(shared, default=0), len(prompt) - 1)
    assert traces.ideal_tokens(_requests(sequences)) == expected


@pytest.mark.parametrize("concurrency", [1, 3, 40])
def test_every_request_gets_its_output_however_many_run_at_once(tmp_path, concurrency):
    """`Replay.step` asserts it of each sequence that finishes."""
    rng = np.random.default_rng(0)
    rows = [_row(i, *map(int, rng.integers(1, 90, size=2))) for i in range(40)]
    requests = traces.read_trace(_trace(tmp_path, *rows))
    cache_plan, config = _make_plan(tmp_path, 2**17, max_num_batched_tokens=64)
    run = replay.replay(cache_plan, config, requests, concurrency)
    assert run.num_unfinished == 0
    assert run.held_bytes[-1] > 0 and run.pool.allocator.num_live_pages(0) == 0
    result = replay.summary(run, requests)
    assert result["peak_running"] <= concurrency
    assert (result["mean_running"] is None) == (concurrency == 1)
    assert (result["preemptions"] > 0) == (concurrency == 40)


def test_a_request_that_never_fits_is_refused(tmp_path):
    cache_plan, config = _make_plan(tmp_path, 2**15)
    requests = traces.read_trace(_trace(tmp_path, _row(0, 60_000, 1)))
    with pytest.raises(ValueError, match=r"'r0' has 60,001 tokens; the cache holds .* at most"):
        replay.replay(cache_plan, config, requests)


def test_the_command_prints_one_object(tmp_path):
    trace = _trace(tmp_path, _row(0, 40, 3), _row(1, 8, 2))
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    command = [sys.executable, str(BENCHMARKS / "replay.py"), "--cache-memory", "1MiB", "--json"]
    command += ["--geometry", str(tmp_path / "tiny.json"), "--trace", str(trace)]
    command += ["--no-prefix-caching", "--page-size", "8", "--max-num-seqs", "4"]
    printed = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(BENCHMARKS.parent)},
    )
    result = json.loads(printed.stdout)
    assert list(result) == KEYS
    assert (result["prompt_tokens"], result["steps"], result["mean_running"]) == (48, 5, None)


@pytest.mark.parametrize("file", GEOMETRIES, ids=lambda file: file.stem)
def test_the_geometries_can_be_planned(file):
    config = replay.EngineConfig(model=file.stem, cache_memory="8GiB")
    cache_plan = replay.make_plan(file, config)
    assert cache_plan.num_slabs >= 32
    assert cache_plan.padding_percent <= (0.6 if file.stem == "zamba2-7b" else 0.5)
