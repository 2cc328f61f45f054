"""What the comparing benchmarks make of measurements. Nothing here looks at how long one took."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import pytest
import torch
from safetensors.torch import load_file

from hybridrt import LLM, SamplingParams

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
    limits = [found.pop(name) for name in ("bytes_per_second", "operations_per_second")]
    assert min(limits) > 1e8
    assert found == {
        "hybridrt": {"median": 1.0, "lower": 1.0, "upper": 1.0, "runs": 2, "note": "slowly"},
        "transformers": {"error": "no memory"},
    }


def test_only_what_is_slower_by_more_than_the_tolerance_is_reported():
    slower = load("regression").slower
    baseline = {"a": 1.0, "b": 2.0, "c": 3.0}
    ratios = {"a": 1.1, "b": 2.5, "c": 2.0, "new": 9.0}
    assert slower(ratios, baseline, 0.2) == {"b": 1.25}


@pytest.fixture
def regression(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The suite of a small machine, whose models take what `found` says."""
    module: Any = load("regression")
    threads = torch.get_num_threads(), numba.get_num_threads()
    module.found = {"llama": {"llama: first token": 1.0}, "lfm2": {"lfm2: first token": 3.0}}
    monkeypatch.setattr(module, "measure", lambda model, *_: dict(module.found[model]))
    monkeypatch.setattr(module, "processor", lambda: "Small CPU, AVX2")
    yield module
    torch.set_num_threads(threads[0])
    numba.set_num_threads(threads[1])


@pytest.fixture
def run(
    regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, Path]]:
    """Runs it with a file of baselines that has this machine's; says how it ended, and the file."""
    path = tmp_path / "regression.json"

    def run(*words: str) -> tuple[int, Path]:
        of_llama_and_lfm2 = ["--models", "llama", "lfm2", "--baseline", str(path), *words]
        monkeypatch.setattr("sys.argv", ["regression.py", *of_llama_and_lfm2])
        try:
            regression.main()
        except SystemExit as ended:
            assert isinstance(ended.code, int)
            return ended.code, path
        return 0, path

    run("--update")
    return run


def test_each_kind_of_processor_has_a_baseline_of_its_own(
    regression: Any,
    run: Callable[..., tuple[int, Path]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(regression, "processor", lambda: "Large CPU, AMX")
    code, path = run()
    message = capsys.readouterr().err
    assert code == 2 and "--update" in message
    assert "no baseline of Large CPU, AMX (it has: Small CPU, AVX2)" in message
    regression.found["llama"]["llama: first token"] = 0.1
    run("--update")
    baselines = json.loads(path.read_text())["baselines"]
    of_llama = {kind: of["ratios"]["llama: first token"] for kind, of in baselines.items()}
    assert of_llama == {"Small CPU, AVX2": 1.0, "Large CPU, AMX": 0.1}


def test_a_model_that_is_measured_anew_says_at_which_commit(
    regression: Any, run: Callable[..., tuple[int, Path]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(regression, "machine", lambda: {"commit": "newer"})
    before = json.loads(run()[1].read_text())["baselines"]["Small CPU, AVX2"]["machines"]
    _, path = run("--update", "--models", "llama")
    after = json.loads(path.read_text())["baselines"]["Small CPU, AVX2"]["machines"]
    assert after == {"llama": {"commit": "newer"}, "lfm2": before["lfm2"]}


def test_what_is_slower_than_its_baseline_ends_with_one(
    regression: Any, run: Callable[..., tuple[int, Path]], capsys: pytest.CaptureFixture[str]
):
    assert run()[0] == 0
    regression.found["lfm2"]["lfm2: first token"] = 4.5
    assert run()[0] == 1
    assert "SLOWER: lfm2: first token takes 1.50 times" in capsys.readouterr().err


def test_the_baselines_have_every_row():
    module = load("regression")
    rows = {f"{model}: {what}" for model in module.MODELS for what in module.WHAT}
    for baseline in json.loads(module.OUT.read_text())["baselines"].values():
        assert set(baseline["ratios"]) == rows
        assert set(baseline["machines"]) == set(module.MODELS)


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
    jobs = [
        {"what": "work", "of": "decode", "batch": 1, "tokens": 9},
        {"what": "logits", "context": [1, 2, 3], "last": [4, 5], "exact": True},
    ]
    work, logits = ask(path, "hybridrt", jobs)
    assert work["answer"]["num_bytes"] > 0
    assert [len(row) for row in logits["answer"]] == [64, 64]


SMALL = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1}
OF_SMALL = {
    "llama": {"num_hidden_layers": 2},
    "deepseek_v2": {
        **{"num_hidden_layers": 2, "num_key_value_heads": 2, "kv_lora_rank": 32},
        **{"n_routed_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
        **{"first_k_dense_replace": 1, "v_head_dim": 16},
    },
    "jamba": {"num_hidden_layers": 3},
    "bamba": {
        **{"num_hidden_layers": 2, "attn_layer_indices": [1]},
        **{"mamba_n_heads": 2, "mamba_d_head": 32, "mamba_d_state": 16},
    },
    "qwen3_next": {
        **{"num_hidden_layers": 4, "num_experts": 4, "moe_intermediate_size": 32},
        **{"shared_expert_intermediate_size": 32, "linear_num_key_heads": 2},
        **{"linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32},
    },
    "lfm2": {"num_hidden_layers": 3, "full_attn_idxs": [2], "conv_dim": 32, "block_dim": 32},
}


@pytest.mark.parametrize("model", OF_SMALL)
def test_a_gguf_file_has_every_weight(model: str, tmp_path: Path):
    """As many numbers as the checkpoint, and where it is read here, the same answers."""
    reader = pytest.importorskip("gguf").GGUFReader
    checkpoint = load("models").make_checkpoint(model, tmp_path, **SMALL | OF_SMALL[model])
    path = load("gguf_checkpoints").write_gguf(checkpoint, tmp_path / "model.gguf")
    kept = sum(tensor.numel() for tensor in load_file(checkpoint / "model.safetensors").values())
    assert sum(int(tensor.n_elements) for tensor in reader(path).tensors) == kept
    if model in ("llama", "jamba", "lfm2"):
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=64)
        rows = []
        for source in (checkpoint, path):
            llm = LLM(str(source), dtype="float32", device="cpu", cache_memory="8MiB")
            (output,) = llm.generate([*range(3, 23)], params)
            assert output.prompt_logprobs is not None
            found = [row for row in output.prompt_logprobs if row]
            rows.append(torch.tensor([[row[t].logprob for t in range(64)] for row in found]))
        torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=2e-5)


def test_a_model_that_llama_cpp_is_not_known_to_have_is_refused(tmp_path: Path):
    pytest.importorskip("gguf")
    (tmp_path / "config.json").write_text('{"model_type": "xlstm"}')
    with pytest.raises(ValueError, match="model_type='xlstm' should be one of llama, deepseek"):
        load("gguf_checkpoints").write_gguf(tmp_path, tmp_path / "model.gguf")


@pytest.mark.parametrize(("factor", "left_out"), [(0.985, False), (1.5, True)])
def test_a_side_whose_logits_are_others_is_left_out(factor: float, left_out: bool):
    compare = load("compare")

    class Side:
        def __init__(self, factor: float, shift: float) -> None:
            self.factor, self.shift = factor, shift

        def logits(self, _: Any, last: list[int], exact: bool = False) -> list[list[float]]:
            factor = 1.0 if exact else self.factor
            return [[factor * n + self.shift for n in range(9)] for _ in last]

    refused = compare.disagreement(Side(1.01, 0), Side(factor, 7))
    assert refused.keys() == ({"llama.cpp"} if left_out else set())


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
