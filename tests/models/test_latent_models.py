"""Latents and indexers' keys: which layers cache them, what is in them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hybridrt import LLM, SamplingParams
from hybridrt.engine.checkpoint import read_config
from hybridrt.models import model_class
from tests.harness.engines import open_llm
from tests.oracle import tiny_checkpoint

PROMPT = [(7 * t) % 131 for t in range(30)]
SHARING = "mistral_large4-shared-latents-and-selections"


def test_layers_that_share_latents_cache_their_indexers_keys_or_nothing() -> None:
    """Layers 2 and 3 read the latents of 0, and layer 2 takes what layer 1 selects."""
    llm = open_llm(SHARING)
    states = {layer.name: [state[0] for state in layer.states] for layer in llm.plan.layers}
    assert states == {
        "model.layers.0.self_attn": ["c_kv", "k_pe", "k_index"],
        "model.layers.1.self_attn": ["c_kv", "k_index"],  # has no positions
        "model.layers.3.self_attn": ["k_index"],
    }
    with llm.session(PROMPT) as session:
        shapes = [
            {name: tuple(x.shape) for name, x in layer.read().items()} for layer in session.layers
        ]
    assert shapes == [
        {"c_kv": (30, 24), "k_pe": (30, 8), "k_index": (30, 16)},
        {"c_kv": (30, 24), "k_index": (30, 16)},
        {"k_index": (30, 16)},
    ]


@torch.no_grad()
def test_a_session_shows_the_keys_that_tokens_are_selected_by() -> None:
    name = "deepseek_v32-twelve-of-the-tokens-before"
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(name), dtype=torch.float32)
    cache = model(torch.tensor([PROMPT]), use_cache=True).past_key_values
    with open_llm(name).session(PROMPT) as session:
        for layer, theirs in zip(session.layers, cache.layers, strict=True):
            given = layer.read()["k_index"]
            torch.testing.assert_close(given, theirs.indexer_keys[0], rtol=1e-4, atol=1e-4)


def _wrong(name: str, change: dict[str, Any]) -> str:
    """What the config says with `change` in it."""
    config = read_config(tiny_checkpoint(name))
    text = config.get("text_config", config)
    with pytest.raises(ValueError) as error:
        model_class(config).Config.from_json({**text, **change})
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "glm_moe_dsa-every-second-layer-selects",
            {"indexer_types": ["shared", "full", "full", "full"]},
            "the first 'full'",
        ),
        (
            "glm_moe_dsa-every-second-layer-selects",
            {"indexer_types": ["full"]},
            "of 4 layers",
        ),
        (
            "glm4_moe_lite-one-dense-layer",
            {"first_k_dense_replace": 2},
            "first_k_dense_replace=2",
        ),
        ("mistral4-queries-do-not-grow", {"rope_parameters": {}}, "llama_4_scaling_beta=None"),
        (
            "mistral4-queries-do-not-grow",
            {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
            "rope_type='default' should be 'yarn'",
        ),
        (
            "mistral4-grouped-routing",
            {"topk_group": 1},
            "num_experts_per_tok=3 should be at most what topk_group=1 of n_group=4 hold",
        ),
        ("longcat_flash-no-expert-costs-nothing", {"head_dim": 12}, "head_dim=12 should be 8"),
        ("longcat_flash-no-expert-costs-nothing", {"router_bias": True}, "router_bias=True"),
        ("hy_v4-two-layers-of-four-select", {"indexer_types": ["full"]}, "of 4 layers"),
        (
            "hy_v4-two-layers-of-four-select",
            {"indexer_types": ["shared", "full", "full", "full"]},
            "the first 'full'",
        ),
        ("hy_v4-two-layers-of-four-select", {"swiglu_limit": 0.0}, "swiglu_limit=0.0"),
        ("axk2-grouped-routing", {"topk_group": None}, "should both be set"),
        ("dots3_note_text-as-published", {"moe_layer_freq": [1]}, "moe_layer_freq has 1 entries"),
        (
            "dots3_note_text-all-three-kinds",
            {"per_layer_config": {"1": {"index_topk": 4}}},
            "LayerSizes.index_topk=4: there is no such field",
        ),
        # The oracle has one place for latents with positions, and the last layer that stores.
        (SHARING, {"kv_source_layers": [0, 0, 0, 0]}, "kv_source_layers[1]=0 should be 1"),
        (SHARING, {"kv_source_layers": [0, 1, 0, 2]}, "kv_source_layers[3]=2 should be 3"),
    ],
)
def test_refused_by_name(name: str, change: dict[str, Any], words: str) -> None:
    assert words in _wrong(name, change)


def test_a_kind_of_layers_has_one_rotary_embedding() -> None:
    config = read_config(tiny_checkpoint("dots3_note_text-all-three-kinds"))
    model = model_class(config)
    unlike = {"per_layer_config": {"3": {"qk_rope_head_dim": 4}}}
    with pytest.raises(ValueError, match=r"per_layer_config\[3\].qk_rope_head_dim=4 should be 8"):
        model(model.Config.from_json({**config, **unlike}))


def test_published_dots3_note_has_the_text_models_keys_beside_the_others() -> None:
    published = {
        "model_type": "dots3_note",
        "vocab_size": 131,
        "hidden_size": 48,
        "num_hidden_layers": 6,
        "moe_layer_freq": 1,
        "rope_theta": 7e6,
        "vision_config": {"embed_dim": 16},
        "audio_config": {"whisper_adapter_in_dim": 16},
    }
    config: Any = model_class(published).Config.from_json(published)
    assert config.layer_types == [
        *["indexed_attention"] * 2,
        *["sliding_attention"] * 3,
        "indexed_attention",
    ]
    assert config.mlp_layer_types == ["dense", *["sparse"] * 5]
    thetas = {kind: rope.rope_theta for kind, rope in config.rope_parameters.items()}
    assert thetas == {
        "full_attention": 7e6,
        "indexed_attention": 7e6,
        "sliding_attention": 50_000,
    }
    sizes = config.mla(2)
    assert (sizes.num_attention_heads, sizes.qk_rope_head_dim, sizes.kv_lora_rank) == (64, 64, 1024)


def test_mistral4_is_the_text_model_of_mistral3(tmp_path: Path) -> None:
    source = tiny_checkpoint("mistral4-queries-grow-every-sixteen-tokens")
    text = json.loads((source / "config.json").read_text())
    whole = {"model_type": "mistral3", "text_config": text, "spatial_merge_size": 2}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(source / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    greedy = SamplingParams(temperature=0.0, max_tokens=5)
    alone, part = (
        LLM(str(path), cache_memory="2MiB", device="cpu").generate(PROMPT, greedy)[0]
        for path in (source, tmp_path)
    )
    assert part.outputs[0].token_ids == alone.outputs[0].token_ids
