"""What a `config.json` leaves out is what `transformers` takes for it."""

from importlib import import_module
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from hybridrt.models import known_model_types
from hybridrt.models.config import ModelConfig


def _config(model_type: str) -> type[ModelConfig]:
    return import_module(f"hybridrt.models.{model_type}").Model.Config


def _theirs(model_type: str) -> Any:
    """The configuration class in transformers; of a multimodal model that of its text model."""
    whole = CONFIG_MAPPING[model_type]
    text = getattr(whole, "sub_configs_defaults", {}).get("text_config")
    if text is None:
        return whole
    return CONFIG_MAPPING[text.model_type] if text.model_type else text.config_class


TYPES = [name for name in known_model_types() if name in CONFIG_MAPPING and _config(name).has_rope]


@pytest.mark.parametrize("model_type", TYPES)
def test_the_base_of_the_rotary_embedding(model_type: str) -> None:
    theirs = _theirs(model_type)
    base = getattr(theirs, "rope_theta", theirs.default_theta)
    assert _config(model_type).default_rope_theta == base


FIELDS = ("rms_norm_eps", "layer_norm_eps", "norm_eps", "tie_word_embeddings", "sliding_window")
KEY_HEADS = ("num_key_value_heads",)


@pytest.mark.parametrize("model_type", [n for n in known_model_types() if n in CONFIG_MAPPING])
def test_sizes_and_switches(model_type: str) -> None:
    ours, theirs = _config(model_type).model_fields, _theirs(model_type)
    for name in FIELDS if "kv_lora_rank" in ours else (*FIELDS, *KEY_HEADS):
        if name in ours and not ours[name].is_required() and hasattr(theirs, name):
            right = getattr(theirs, name)
            if right is None and ours[name].default is not None:
                right = getattr(theirs(), name)  # what it makes of None
            assert ours[name].default == right, name
