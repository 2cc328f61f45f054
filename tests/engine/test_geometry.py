"""Geometries: layers from a file, with no model behind them."""

import json
from pathlib import Path
from typing import Any

import pytest

from hybridrt.cache.planner import plan
from hybridrt.cache.spec import Window
from hybridrt.config import EngineConfig
from hybridrt.engine.geometry import load_geometry

ATTENTION = {"kind": "attention", "num_kv_heads": 2, "head_dim": 8, "dtype": "bfloat16"}
MLA = {"kind": "mla", "kv_lora_rank": 32, "qk_rope_head_dim": 8, "dtype": "bfloat16"}
STATE = {"kind": "state", "states": [["conv_state", [3, 8], "bfloat16"], ["s", [4, 4], "float32"]]}


def _write(folder: Path, *layers: dict[str, Any], **more: Any) -> Path:
    file = folder / "g.json"
    file.write_text(json.dumps({"name": "g", "layers": list(layers), **more}))
    return file


def test_layers_are_packed_as_those_of_a_model(tmp_path):
    config = EngineConfig(model="g", page_size=16, kernel_block_size=8)
    file = _write(tmp_path, ATTENTION | {"repeat": 2, "window": None}, MLA, STATE)
    geometry = load_geometry(file, config)
    assert list(geometry.layers) == [f"layers.{i}" for i in range(4)]
    planned = plan(geometry.layers, config, 2**20)
    assert [layer.bytes_per_token for layer in planned.layers] == [64, 64, 80, 0]
    assert [layer.bytes_per_sequence for layer in planned.layers] == [0, 0, 0, 48 + 64]
    assert planned.layers[0].states == (("kv", (2, 8, 16), "bfloat16"),)
    assert [state[0] for state in planned.layers[2].states] == ["c_kv", "k_pe"]


def test_values_may_have_another_size_and_tokens_may_come_first(tmp_path):
    config = EngineConfig(model="g", kv_layout="NHD")
    geometry = load_geometry(_write(tmp_path, ATTENTION | {"head_dim_v": 4}), config)
    (kv,) = geometry.layers["layers.0"].cache_spec.states
    assert kv.shape == (16, 2, 12)


def test_attention_with_a_window_slides_or_goes_by_chunks(tmp_path):
    config = EngineConfig(model="g")
    layers = [ATTENTION | {"window": 512}, ATTENTION | {"window": 512, "chunked": True}, ATTENTION]
    planned = plan(load_geometry(_write(tmp_path, *layers), config).layers, config, 2**24)
    assert [group.name for group in planned.groups] == ["window-512", "chunk-512", "full"]
    assert [row.window for row in planned.layers] == [Window(512), Window(512, True), None]
    assert planned.bytes_for(600) == 64 * (512 + 512 + 600)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (ATTENTION | {"window": 0}, r"layers\[1\]: .*window=0"),
        (ATTENTION | {"window": 8, "chunked": 3}, r"chunked=3"),
        (ATTENTION | {"kind": "lstm"}, r"kind='lstm' should be one of attention, mla, state"),
        (ATTENTION | {"dtype": "int3"}, r"dtype='int3'"),
        (ATTENTION | {"num_kv_heads": 0}, r"num_kv_heads=0"),
        (ATTENTION | {"heads": 3}, r"heads=3: there is no such field"),
        (ATTENTION | {"repeat": 0}, r"repeat=0 should be a whole number from 1 on"),
        ({"kind": "mla", "dtype": "bfloat16"}, r"kv_lora_rank: missing"),
        ({"kind": "state", "states": []}, r"states"),
        ({"kind": "state", "states": [["a", [0], "float32"]]}, r"states.0.1.0=0"),
        ("attention", r"kind=None"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, layer, message):
    with pytest.raises(ValueError, match=message):
        load_geometry(_write(tmp_path, STATE, layer), EngineConfig(model="g"))


def test_needs_layers_and_a_length_where_pages_are_as_long(tmp_path):
    with pytest.raises(ValueError, match="at least one layer"):
        load_geometry(_write(tmp_path), EngineConfig(model="g"))
    contiguous = EngineConfig(model="g", cache_policy="contiguous")
    with pytest.raises(ValueError, match="needs max_model_len"):
        load_geometry(_write(tmp_path, ATTENTION), contiguous)
