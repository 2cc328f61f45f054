"""Makes tiny random checkpoints, with `transformers` in the format it saves."""

import copy
import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.oracle.auto_classes import OTHER_PARTS
from tests.oracle.layouts import (
    add_layer,
    cut_convolutions,
    nest,
    release_axk1,
    release_deepseek_v4,
)
from tests.oracle.legacy import rewrite_config
from tests.oracle.random_weights import randomise
from tests.oracle.rows import Tiny
from tests.oracle.table import BY_NAME
from tests.shared_folder import made_once
from training.dense import DenseStack


@functools.cache
def tiny_checkpoint(name: str, dtype: str = "float32") -> Path:
    """The folder of the row's checkpoint, which the first process that asks for it makes.

    `dtype="bfloat16"` is the same weights, rounded and saved as bfloat16 (what a
    model keeps in float32 stays so).
    """
    return made_once(f"{name}-{dtype}", lambda path: _make(BY_NAME[name], dtype, path))


def _make(row: Tiny, dtype: str, path: Path) -> None:
    if row.model_type == "hybrid_stack":
        assert dtype == "float32"
        _save_stack(row, path)
        return
    if dtype == "float32":
        model = random_model(row)
    else:
        source = tiny_checkpoint(row.name)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    options: dict[str, Any] = {"save_original_format": row.layout != "stacked"}
    if row.layout == "sharded":
        options["max_shard_size"] = "40KB"
    model.save_pretrained(path, **options)
    if row.layout == "legacy":
        rewrite_config(path / "config.json", row.model_type)
    if row.layout == "extra layer":
        add_layer(path / "model.safetensors", row.config["num_hidden_layers"])
    if row.layout == "convolutions by part":
        cut_convolutions(path / "model.safetensors")
    if row.layout == "A.X-K1":
        release_axk1(path / "model.safetensors")
    if row.layout == "DeepSeek-V4":
        release_deepseek_v4(path)
    if row.layout == "multimodal":
        nest(path, row.model_type.removesuffix("_text"))


def random_model(row: Tiny) -> Any:
    """The row's model in transformers."""
    fields = copy.deepcopy(dict(row.config))
    if row.model_type in OTHER_PARTS:
        tied = {k: fields.pop(k) for k in ("tie_word_embeddings",) if k in fields}
        parts: dict[str, Any] = copy.deepcopy(dict(OTHER_PARTS[row.model_type]))
        if "text_hidden_size" in parts["vision_config"]:
            parts["vision_config"]["text_hidden_size"] = fields["hidden_size"]
        fields = {"text_config": fields, **tied, **parts}
    config = AutoConfig.for_model(row.model_type, **fields)
    # A token that ends outputs, but for a row in which it has an effect of its own.
    config.get_text_config().eos_token_id = row.config.get("eos_token_id")
    config.eos_token_id = row.config.get("eos_token_id")
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomise(model, row.name)
    return model


def _save_stack(row: Tiny, path: Path) -> None:
    model = DenseStack(dict(row.config))
    randomise(model, row.name)
    save_file(model.state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps({"model_type": row.model_type, **row.config}))
