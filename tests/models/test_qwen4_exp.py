"""What checkpoints of Qwen4-Exp may have, and what they must not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from hybridrt import LLM
from tests.oracle import tiny_checkpoint

ROW = "qwen4_exp_text-n-grams-in-two-layers"
NUMBERS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")


def _open(folder: Path) -> LLM:
    return LLM(str(folder), cache_memory="4MiB", device="cpu")


def _changed(folder: Path, changes: dict[str, Any], tensors: dict[str, Tensor] | None) -> Path:
    source = tiny_checkpoint(ROW)
    config = json.loads((source / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is None:
        shutil.copy(source / "model.safetensors", folder)
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def _tensors() -> dict[str, Tensor]:
    return load_file(tiny_checkpoint(ROW) / "model.safetensors")


def _numbers(llm: LLM) -> dict[str, list[int]]:
    buffers = llm.engine.model.named_buffers()
    return {n: b.tolist() for n, b in buffers if n.endswith(NUMBERS)}


def test_numbers_of_the_hash_that_a_checkpoint_lacks_follow_from_its_config(tmp_path: Path) -> None:
    tensors = {n: t for n, t in _tensors().items() if not n.endswith(NUMBERS)}
    assert len(_tensors()) == len(tensors) + 6
    assert _numbers(_open(_changed(tmp_path, {}, tensors))) == _numbers(_open(tiny_checkpoint(ROW)))


def test_those_that_it_has_come_first(tmp_path: Path) -> None:
    tensors = _tensors()
    (name, *_) = (n for n in tensors if n.endswith("layer_multipliers"))
    tensors[name] += 2**50
    found = _numbers(_open(_changed(tmp_path, {}, tensors)))
    (ours,) = (n for n in found if name.endswith(n.removeprefix("model.")))
    assert found[ours] == tensors[name].tolist()


def test_whole_numbers_are_no_weights_and_weights_no_whole_numbers(tmp_path: Path) -> None:
    tensors = _tensors()
    for name, tensor in tensors.items():
        if name.endswith("layer_multipliers"):
            tensors[name] = tensor.float()
        if name.endswith("hc_norm.weight"):
            tensors[name] = tensor.long()
    with pytest.raises(ValueError, match=r"hc_norm\.weight is I64, should be one of F32") as error:
        _open(_changed(tmp_path, {}, tensors))
    assert "layer_multipliers is F32, should be one of I32, I64" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ple_layer_ids": [2]}, r"ple_layer_ids=\[2\] should be numbers, from 1, of layers"),
        ({"ple_layer_ids": [4]}, r"ple_layer_ids=\[4\] should be numbers"),
        ({"eos_token_id": None}, "ple_layer_ids needs an eos_token_id"),
        ({"indexer_budget": None}, "indexer_budget should be given"),
        ({"indexer_budget": 13}, "indexer_compress_ratio=4 should divide indexer_budget=13"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads=2"),
        ({"indexer_head_dim": 2}, "indexer_head_dim=2 should be at least 4"),
        ({"hc_count": 1}, "hc_count=1"),
        ({"output_gate_type": "tanh"}, "output_gate_type='tanh'"),
        ({"ple_embed_dim": 33}, "ple_embed_dim=33 should be a multiple of 4"),
    ],
)
def test_what_no_such_model_has_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        _open(_changed(tmp_path, changes, None))
