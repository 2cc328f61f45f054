"""The text model of a multimodal checkpoint: its config, its class, its tensors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridrt import LLM, SamplingParams, models
from hybridrt.models import lfm2, llama, model_class
from hybridrt.models.multimodal import text_config
from tests.oracle import tiny_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=6, logprobs=0)


class Spoken(llama.Model):
    text_config_of = ("voices", "pictures")


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_registered", {"spoken_text": Spoken, "plain": llama.Model})


def wrapped(source: Path, folder: Path, names: dict[str, str], **outer: Any) -> Path:
    """The checkpoint as the text part of another, its tensors' names begun in another way."""
    part = json.loads((source / "config.json").read_text()) | {"model_type": "spoken_text"}
    outer = {"model_type": "pictures", "text_config": part, "vision_config": {"depth": 2}, **outer}
    (folder / "config.json").write_text(json.dumps(outer))
    tensors = load_file(source / "model.safetensors")
    for theirs, ours in names.items():
        tensors = {
            theirs + n[len(ours) :] if n.startswith(ours) else n: tensors[n] for n in tensors
        }
    tensors |= {
        "model.vision_tower.blocks.0.attn.qkv.weight": torch.zeros(2, dtype=torch.int8),
        "model.multi_modal_projector.linear_1.weight": torch.zeros(3, 4),
        "visual.patch_embed.weight": torch.zeros(1),
        "audio_tower.conv1.bias": torch.zeros(1),
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "names",
    [
        {"model.language_model.": "model."},
        {"language_model.model.": "model.", "language_model.lm_head.": "lm_head."},
        {"model.language_model.model.": "model."},
        {},
    ],
    ids=str,
)
def test_the_text_model_answers_as_it_does_alone(names: dict[str, str], tmp_path: Path) -> None:
    source = tiny_checkpoint("llama-grouped-heads")
    whole = wrapped(source, tmp_path, names)
    prompt = list(range(20))
    alone, part = (
        LLM(str(folder), cache_memory="4MiB", device="cpu").generate(prompt, GREEDY)[0].outputs[0]
        for folder in (source, whole)
    )
    assert alone.token_ids == part.token_ids
    assert alone.logprobs == part.logprobs


def test_what_is_of_neither_part_is_still_refused(tmp_path: Path) -> None:
    whole = wrapped(tiny_checkpoint("llama-grouped-heads"), tmp_path, {})
    tensors = load_file(whole / "model.safetensors")
    save_file(tensors | {"model.surprise.weight": torch.zeros(1)}, whole / "model.safetensors")
    with pytest.raises(ValueError, match=r"unexpected \(1\):\n    model.surprise.weight$"):
        LLM(str(whole), cache_memory="4MiB", device="cpu")


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("spoken", "anything"),  # of the same name
        ("spoken", None),
        ("pictures", "spoken_text"),  # declared
        ("voices", "spoken"),
        ("plain_text", "other"),
    ],
)
def test_the_class_is_found_by_either_type(outer: str, inner: str | None) -> None:
    part = {"model_type": inner} if inner else {}
    found = model_class({"model_type": outer, "text_config": part})
    assert found is (llama.Model if outer == "plain_text" else Spoken)


@pytest.mark.parametrize("whole", ["lfm2_vl", "lfm2-vl"])  # in transformers, and before
@pytest.mark.parametrize("key", ["tie_word_embeddings", "tie_embedding"])
def test_lfm2_with_images_in_either_spelling(whole: str, key: str) -> None:
    part = {"model_type": "lfm2", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1}
    config = {"model_type": whole, "text_config": part, key: False}
    assert model_class(config) is lfm2.Model
    assert not lfm2.Config.from_json(text_config(config)).tie_word_embeddings


def test_a_whole_that_its_text_model_does_not_name_is_refused() -> None:
    config = {"model_type": "prefix_pictures", "text_config": {"model_type": "llama"}}
    with pytest.raises(ValueError, match="'prefix_pictures' with the text_config of 'llama'"):
        model_class(config)


def test_the_whole_counts_in_what_is_its_own() -> None:
    whole = {"model_type": "w", "tie_word_embeddings": True, "dtype": "float16", "eos_token_id": 2}
    part = {"model_type": "t", "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    merged = text_config({**whole, "vision_config": {}, "text_config": part})
    assert merged == {
        "model_type": "t",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 2,
    }
    assert text_config({**whole, "text_config": {"eos_token_id": 3}}) == {
        **whole,
        "eos_token_id": 3,
    }
    assert text_config(whole) == whole
    with pytest.raises(ValueError, match="text_config=7 should be an object"):
        text_config({"model_type": "w", "text_config": 7})
