"""What the comparing benchmarks make of measurements. Nothing here looks at how long one took."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
TIMES = {"median": 0.5, "lower": 0.4, "upper": 0.6, "runs": 3}


@pytest.fixture(autouse=True)
def modules_of_benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They are scripts, which import each other from their folder; no test sees them later."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    names = {path.stem for path in BENCHMARKS.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    yield
    for name in names & sys.modules.keys():
        del sys.modules[name]
    sys.modules.update(others)


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def row(**changes: Any) -> dict[str, Any]:
    first = {
        "model": "llama",
        "what": "prefill",
        "tokens": 128,
        "batch": 2,
        "hybridrt": TIMES,
        "transformers": TIMES | {"median": 1.0},
        "floor": 0.25,
        "bytes_per_second": 40e9,
        "operations_per_second": 1e12,
        "commit": "abc",
    }
    return first | changes


def document(*rows: dict[str, Any]) -> str:
    return load("compare_tables").document(rows, "command", {"cpu": "one", "commit": "abc"})


def test_a_row_has_speeds_ratios_and_the_floor():
    line = "| llama | prefill | 128 | 2 | 512 tok/s | 256 tok/s | 2.00 | 1,024 tok/s | 2.0 |"
    assert line in document(row())
    line = "| llama | decode | 4,096 | 2 | 500.0 ms | 1,000.0 ms | 2.00 | 250.0 ms | 2.0 |"
    assert line in document(row(what="decode", tokens=4096))


def test_limits_of_parts_that_ran_apart_are_a_range():
    text = document(row(), row(batch=8, bytes_per_second=44e9))
    assert "40.0 to 44.0 GB/s" in text
    assert "at 1.0 TFLOP/s" in text


def test_single_runs_and_failures_are_explained_below():
    once = row(transformers=TIMES | {"runs": 1, "note": "one by one"}, vllm={"error": "No: why\nx"})
    text = document(once)
    assert "| 512 tok/s* |" in text
    assert "One run, for the time it takes" in text
    assert "transformers, llama, prefill 2 x 128: one by one." in text
    assert "| fails |  |" in text
    assert "llama: vllm fails: No: why" in text


def test_rows_that_are_measured_again_take_their_places():
    compare = load("compare")
    kept, old = row(what="decode"), row()
    new, other = row(floor=0.1), row(model="jamba")
    assert compare.merge([kept, old], [other, new]) == [new, kept, other]


def test_parts_of_what_was_measured_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    numbers = {"rows": [row(), row(batch=8), row(model="jamba")]}
    (tmp_path / "c.json").write_text(json.dumps(numbers))
    args = {"models": ["llama"], "what": ["prefill"], "tokens": [128], "batches": [8]}
    load("compare").show(argparse.Namespace(**args, out=tmp_path / "c.md"))
    assert [line[:9] for line in capsys.readouterr().out.splitlines()[2:]] == ["| llama |"]


def test_a_side_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch):
    compare, sides = load("compare"), load("sides")

    class Side:
        note: str | None = None

        def __init__(self, name: str) -> None:
            self.name = name

        def prefill(self, _: Any) -> float:
            if self.name == "transformers":
                raise sides.SideFailedError(self.name, "no memory")
            self.note = "slowly"
            return 1.0

    args = argparse.Namespace(repeats=2, patience=9)
    both = {name: Side(name) for name in ("hybridrt", "transformers")}
    found = compare.measure_row(row(), both, args)
    assert found == {
        "hybridrt": {"median": 1.0, "lower": 1.0, "upper": 1.0, "runs": 2, "note": "slowly"},
        "transformers": {"error": "no memory"},
    }


def test_only_what_is_slower_by_more_than_the_tolerance_is_reported():
    slower = load("regression").slower
    baseline = {"a": 1.0, "b": 2.0, "c": 3.0}
    ratios = {"a": 1.1, "b": 2.5, "c": 2.0, "new": 9.0}
    assert slower(ratios, baseline, 0.2) == {"b": 1.25}


def test_workers_of_both_runtimes_answer(tmp_path: Path):
    models = load("models")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64}
    path = models.make_checkpoint("llama", tmp_path, **small)
    jobs = [
        {"what": "about"},
        {"what": "prefill", "prompts": [[1, 2, 3], [4, 5, 6]]},
        {"what": "decode", "context": [1, 2, 3], "last": [4, 5], "steps": 2},
        {"what": "nonsense"},
    ]
    for side in ("hybridrt", "transformers"):
        about, prefill, decode, error = ask(path, side, jobs)
        assert isinstance(about["answer"], str)
        assert prefill["answer"] > 0
        assert len(decode["answer"]) == 2
        assert error["error"].startswith("KeyError")
    (work,) = ask(path, "hybridrt", [{"what": "work", "of": "decode", "batch": 1, "tokens": 9}])
    assert work["answer"]["num_bytes"] > 0


def ask(path: Path, side: str, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers of a worker, a process of its own."""
    command = [sys.executable, str(BENCHMARKS / "worker_speed.py"), side, str(path)]
    done = subprocess.run(
        command,
        input="".join(json.dumps(job) + "\n" for job in jobs),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
