"""`hybridrt inspect`."""

import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from .conftest import DEMO


def test_counts_every_parameter_once_and_needs_no_weights(run, config_only):
    data = run("inspect", config_only, "--json").json
    with safe_open(DEMO / "model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert data["parameters"] == sum(part["parameters"] for part in data["parts"]) == stored
    assert data["parameter_bytes"] == 4 * stored
    assert data["file_bytes"] == 0
    assert data["tokenizer_size"] is None


def test_cache_bytes_of_the_parts_are_those_of_the_plan(run, config_only):
    data = run("inspect", config_only, "--json").json
    for key in ("bytes_per_token", "bytes_per_sequence"):
        assert sum(part[f"cache_{key}"] for part in data["parts"]) == data["plan"][key]


def test_every_tensor_is_said_to_become_what_it_fills(run):
    data = run("inspect", DEMO, "--json").json["weights"]
    assert data["fits"] and data["missing"] == data["unused"] == [] and data["problems"] == {}
    with safe_open(DEMO / "model.safetensors", "pt") as file:
        assert {tensor["name"] for tensor in data["tensors"]} == set(file.keys())
    by_name = {tensor["name"]: tensor for tensor in data["tensors"]}
    assert by_name["model.layers.2.mixer.k_proj.weight"] == {
        "name": "model.layers.2.mixer.k_proj.weight",
        "file": "model.safetensors",
        "dtype": "F32",
        "shape": [64, 128],
        "bytes": 4 * 64 * 128,
        "use": "weight",
        "becomes": "model.layers.2.mixer.qkv_proj.weight[128:192]",
    }


def test_without_weights_there_is_a_plan_and_no_tensors(run, config_only):
    assert run("inspect", config_only, "--json").json["weights"] is None
    out = run("inspect", config_only).out
    assert "Tensors" not in out and "Cached layers" in out and "Cache groups" in out


def test_a_checkpoint_is_explained_within_80_columns(run):
    out = run("inspect", DEMO).out
    assert max(map(len, out.splitlines())) <= 80
    for text in (
        "2, 4       mixer.o_proj.weight          F32 128x128  itself",
        "The weights fit the model.",
        "Cached layers",
        "Cache groups",
    ):
        assert text in out


def test_what_is_missing_and_unused_is_listed(run, tmp_path):
    shutil.copy(DEMO / "config.json", tmp_path)
    tensors = load_file(DEMO / "model.safetensors")
    del tensors["model.norm.weight"]
    tensors |= {"visual.blocks.0.weight": torch.ones(2), "model.more": torch.ones(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    data = run("inspect", tmp_path, "--json").json["weights"]
    assert not data["fits"]
    assert data["missing"] == ["model.norm.weight"]
    assert set(data["unused"]) == {"visual.blocks.0.weight", "model.more"}
    assert data["problems"] == {"missing": ["model.norm.weight"], "unexpected": ["model.more"]}
    out = run("inspect", tmp_path).out
    for text in (
        "The weights do not fit the model.",
        "missing (1):\n    model.norm.weight",
        "unexpected (1):\n    model.more",
        "left aside (1):\n    visual.blocks.0.weight",
    ):
        assert text in out


@pytest.mark.parametrize("page_size", [4, 16])
def test_a_prompt_shows_the_pages_that_it_takes(run, page_size):
    options = ("--page-size", page_size, "--json", "--max-num-batched-tokens", 10)
    data = run("inspect", DEMO, "--prompt", "amy=372\n" * 5, *options).json["prompt"]
    assert data["num_tokens"] == 40
    pages = -(-40 // page_size)
    assert {group: len(ids) for group, ids in data["page_ids"].items()} == {
        "full": pages,
        "state": 1,
    }
    for layer in data["layers"]:
        count = pages if layer["kind"] == "full" else 1
        assert layer["pages"] == count
        assert layer["bytes"] == count * layer["bytes_per_page"]
        assert 0 < layer["bytes_used"] <= layer["bytes"]
        assert all(state["shape"][0] == count for state in layer["states"])


def test_tables_fit_a_terminal_of_80_columns(run):
    out = run("inspect", DEMO, "--token-ids", "1,2,3").out
    assert max(map(len, out.splitlines())) <= 80
    for text in (
        "layers      7, of which 6 cache",
        "tokens, no chat template",
        "After 3 tokens",
        "group full: ",
    ):
        assert text in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "x", "--token-ids", "1"], "not both"),
        (["--prompt", "x" * 15, "--max-model-len", "16"], "should have at most 14"),
        (["--prompt", "x" * 16, "--max-model-len", "16"], "the prompt has 16 tokens"),
    ],
)
def test_user_errors(run, arguments, message):
    done = run("inspect", DEMO, *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
