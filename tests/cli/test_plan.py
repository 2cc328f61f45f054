"""`hybridrt plan`."""

import json

import pytest

from hybridrt import LLM, EngineConfig
from hybridrt.cache.explain import (
    MOST_ROWS,
    explain,
    number_ranges,
    size_text,
)
from hybridrt.cache.planner import plan
from hybridrt.engine.geometry import load_geometry

from .conftest import DEMO

GEOMETRY = {
    "name": "small",
    "mixer": "kda",
    "layers": [
        {"kind": "attention", "num_kv_heads": 2, "head_dim": 8, "dtype": "bfloat16", "repeat": 20},
        {"kind": "state", "states": [["conv_state", [3, 8], "bfloat16"]], "repeat": 10},
    ],
}


def test_needs_no_weights_and_is_the_plan_that_a_model_gets(run, config_only):
    memory = ("--cache-memory", "4MiB")
    data = run("plan", config_only, *memory, "--json").json
    loaded = LLM(str(DEMO), cache_memory="4MiB").plan
    assert data["num_slabs"] == loaded.num_slabs
    assert data["slab_bytes"] == loaded.slab_bytes
    assert [group["page_bytes"] for group in data["groups"]] == [
        group.page_bytes for group in loaded.groups
    ]
    for row, layer in zip(data["layers"], loaded.layers, strict=True):
        for key in ("index", "name", "mixer", "bytes_per_token", "bytes_per_sequence"):
            assert row[key] == getattr(layer, key)
        assert row["states"][0]["name"] == layer.states[0][0]
    assert sum(row["bytes_per_token"] for row in data["layers"]) == data["bytes_per_token"]


def test_says_how_many_sequences_fit_up_to_the_longest(run, config_only):
    fits = run("plan", config_only, "--cache-memory", "4MiB", "--json").json["fits"]
    assert [fit["tokens"] for fit in fits] == [512, 2048]
    assert fits[0]["sequences"] > fits[1]["sequences"] > 0


def test_tables_fit_a_terminal_of_80_columns(run, config_only):
    out = run("plan", config_only).out
    assert max(map(len, out.splitlines())) <= 80
    for text in ("mamba1", "attention", "mla", "ssm_state ", "sequences that fit"):
        assert text in out


def test_plans_a_geometry(run, tmp_path):
    file = tmp_path / "g.json"
    file.write_text(json.dumps(GEOMETRY))
    data = run("plan", "--geometry", file, "--cache-memory", "1MiB", "--json").json
    assert (data["model"], data["max_model_len"]) == ("small", None)
    assert data["bytes_per_token"] == 20 * 2 * 16 * 2
    assert data["bytes_per_sequence"] == 10 * 3 * 8 * 2
    assert {layer["mixer"] for layer in data["layers"]} == {"attention", "kda"}
    assert data["pool_bytes"] <= 2**20


def test_very_many_layers_are_told_together(run, tmp_path):
    file = tmp_path / "g.json"
    file.write_text(json.dumps(GEOMETRY))
    out = run("plan", "--geometry", file, "--cache-memory", "1MiB").out
    assert "0-19 (20)" in out
    assert "20-29 (10)" in out
    assert sum(layer["repeat"] for layer in GEOMETRY["layers"]) > MOST_ROWS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs a MODEL or a --geometry"),
        ([DEMO, "--geometry", "g.json"], "not both"),
        (["--geometry", "g.json"], "--geometry needs --cache-memory"),
        (["--geometry", "nowhere.json", "--cache-memory", "1MiB"], "nowhere.json"),
        ([DEMO, "--max-model-len", "4096"], "max_model_len=4096 should be at most"),
    ],
)
def test_user_errors(run, arguments, message):
    done = run("plan", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_explain_has_no_colour_whatever_the_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = tmp_path / "g.json"
    file.write_text(json.dumps(GEOMETRY))
    config = EngineConfig(model="g")
    text = explain(plan(load_geometry(file, config).layers, config, 2**20))
    assert "\x1b" not in text
    assert "kda" in text


def test_numbers_for_people():
    assert number_ranges([5, 0, 1, 2, 7, 8]) == "0-2, 5, 7-8"
    assert [size_text(n) for n in (12, 2048, 3 * 2**20, 5 * 2**30)] == [
        "12 bytes", "2.0 KiB", "3.0 MiB", "5.0 GiB",
    ]  # fmt: skip
