"""`hybridrt bench latency`, `throughput` and `startup`. Nothing here looks at how long it took."""

import gc
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hybridrt.cli.bench import fresh_process
from hybridrt.measure import machine

CRAMPED = ("--max-model-len", 32, "--cache-memory", "160KB")
QUICK = ("--output-tokens", 3, "--repeats", 2)


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the machine takes seconds, and is a test of the machine."""
    limits = machine.Limits(bytes_per_second=1e9, operations_per_second=1e9)
    monkeypatch.setattr(machine, "measure_limits", lambda *_: limits)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that transformers can load too."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=None,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny") / "llama"
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def check_spread(spread, runs):
    assert 0 < spread["lower"] <= spread["median"] <= spread["upper"]
    assert spread["runs"] == runs


def test_latency_has_a_row_for_each_batch_and_length(run):
    data = run(
        *("bench", "latency", "demo", *QUICK, "--prompt-tokens", 20, "--context-tokens", 33),
        *("--context-tokens", 50, "--batch", 1, "--batch", 3, "--json"),
    ).json
    assert [(row["what"], row["batch"], row["tokens"]) for row in data["rows"]] == [
        ("first token", 1, 20),
        ("between tokens", 1, 33),
        ("between tokens", 1, 50),
        ("first token", 3, 20),
        ("between tokens", 3, 33),
        ("between tokens", 3, 50),
    ]
    for row in data["rows"]:
        check_spread(row["hybridrt"], 2)
        tokens = row["batch"] * (row["tokens"] if row["what"] == "first token" else 1)
        assert row["tokens_per_second"] == pytest.approx(tokens / row["hybridrt"]["median"])
        assert row["times_floor"] == row["hybridrt"]["median"] / row["floor_seconds"]
    assert (data["dtype"], data["device"], data["repeats"]) == ("float32", "cpu", 2)
    assert data["limits"] == {"bytes_per_second": 1e9, "operations_per_second": 1e9}
    assert data["num_preemptions"] == 0
    assert data["machine"]["torch"] == torch.__version__


def test_throughput_counts_all_tokens(run):
    data = run(
        *("bench", "throughput", "demo", *QUICK, "--requests", 5, "--prompt-tokens", 20),
        *("--max-num-seqs", 2, "--json"),
    ).json
    (row,) = data["rows"]
    check_spread(row["hybridrt"], 2)
    assert row["tokens_per_second"] == pytest.approx(5 * 23 / row["hybridrt"]["median"])


def test_startup_has_a_row_for_each_stage(run):
    data = run("bench", "startup", "demo", "--repeats", 1, "--prompt-tokens", 4, "--json").json
    assert [row["stage"] for row in data["rows"]] == ["import", "load", "first token", "in all"]
    for row in data["rows"]:
        check_spread(row["hybridrt"], 1)
        assert row["floor_seconds"] > 0


def test_transformers_takes_turns(run, tiny_llama):
    against = ("--against", "transformers", "--json")
    first, between = run(
        "bench", "latency", tiny_llama, *QUICK, "--prompt-tokens", 20, "--batch", 3, *against
    ).json["rows"]
    (many,) = run("bench", "throughput", tiny_llama, *QUICK, "--requests", 3, *against).json["rows"]
    for row in (first, between, many):
        check_spread(row["transformers"], 2)
        ratio = row["transformers"]["median"] / row["hybridrt"]["median"]
        assert row["transformers_ratio"] == ratio


def test_both_sides_have_the_same_stages(tiny_llama):
    job = {"model": str(tiny_llama), "engine": {}, "tokens": 3, "seed": 0}
    about = fresh_process.about(job)
    assert (about["dtype"], about["device"], about["vocab_size"]) == ("float32", "cpu", 64)
    begun = time.time()
    for side in (fresh_process.hybridrt, fresh_process.transformers):
        ends = side(job | about)
        assert list(ends) == ["import", "load", "first token"]
        assert begun < ends["import"] < ends["load"] < ends["first token"]
        begun = ends["first token"]
    gc.enable()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["latency", "--prompt-tokens", 20, "--batch", 2], ["between tokens", "GB/s", "x floor"]),
        (["throughput", "--requests", 2], ["All requests to their last token", "tok/s"]),
    ],
)
def test_tables_for_people(run, command, words):
    out = run("bench", command[0], "demo", *command[1:], *QUICK, "--device", "cpu").out
    assert "Medians of 2 runs" in out
    for word in words:
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["latency", "demo", "--output-tokens", 1], "--output-tokens=1 should be at least 2"),
        (["latency", "demo", "--repeats", 0], "--repeats=0 should be at least 1"),
        (["latency", "demo", "--batch", 0], "--batch=0 should be at least 1"),
        (["latency", "demo", "--batch", 65], "--batch=65 should be at most --max-num-seqs=64"),
        (["latency", "demo", "--context-tokens", 2040], "at most 2048 together"),
        (["latency", "demo", "--against", "x"], "--against='x' should be transformers"),
        (["throughput", "demo", "--requests", 0], "--requests=0 should be at least 1"),
        (["throughput", "demo", "--prompt-tokens", 2040], "at most 2048 together"),
        (["startup", "demo", "--prompt-tokens", 0], "--prompt-tokens=0 should be at least 1"),
        (["startup", "nowhere", "--repeats", 1], "nowhere"),
        (
            ["latency", "demo", *QUICK, "--prompt-tokens", 20, "--batch", 4, *CRAMPED],
            "never ran as a whole",
        ),
    ],
)
def test_user_errors(run, arguments, message):
    done = run("bench", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_transformers_that_is_not_installed_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for command in ("latency", "throughput", "startup"):
        done = run("bench", command, "demo", "--against", "transformers")
        assert (done.code, done.out) == (2, "")
        assert "transformers is not installed" in done.err


def test_what_transformers_can_not_load_is_named(run):
    done = run("bench", "latency", "demo", *QUICK, "--against", "transformers")
    assert (done.code, done.out) == (2, "")
    # The error is set in lines as wide as the terminal.
    assert "transformers can't load demo: The checkpoint" in " ".join(done.err.split())
    assert "hybrid_stack" in done.err
