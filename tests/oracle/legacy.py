"""`config.json` files as releases of transformers before 5 wrote them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.oracle import legacy_attention, legacy_latent, legacy_state

_PARTS = (legacy_attention, legacy_latent, legacy_state)
# What older config.json files of each model hold beyond today's, with the values
# of the real checkpoints. None of them changes the result.
_OLDER_KEYS: Mapping[str, Mapping[str, Any]] = {
    name: keys for part in _PARTS for name, keys in part.OLDER_KEYS.items()
}
# What they did not hold yet, beside `dtype` and `rope_parameters`.
_NEWER_KEYS: Mapping[str, tuple[str, ...]] = {
    name: keys for part in _PARTS for name, keys in part.NEWER_KEYS.items()
}
# What they called the base of the rotary embedding in layers with windows.
_WINDOW_THETAS = {
    "dots3_note_text": "swa_rope_theta",
    "gemma3_text": "rope_local_base_freq",
    "mimo_v2_flash": "swa_rope_theta",
}


def rewrite_config(path: Path, model_type: str) -> None:
    """Spells `config.json` as releases before 5 did, with the keys of those days."""
    whole = json.loads(path.read_text())
    config = whole.get("text_config", whole)
    for key in _NEWER_KEYS.get(model_type, ()):
        del config[key]
    config["torch_dtype"] = config.pop("dtype")
    rope, key = config.pop("rope_parameters", None), "type"
    if model_type == "gemma4_text":
        config["rope_parameters"], rope = rope, None
    if rope is not None and "sliding_attention" in rope:
        config[_WINDOW_THETAS[model_type]] = rope["sliding_attention"]["rope_theta"]
        rope, key = rope["full_attention"], "rope_type"
    if rope is not None:
        rope.pop("partial_rotary_factor", None)
        rope_type, config["rope_theta"] = rope.pop("rope_type"), rope.pop("rope_theta")
        config["rope_scaling"] = None if rope_type == "default" else {key: rope_type, **rope}
        if model_type == "mimo_v2_flash":
            del config["rope_scaling"]  # which transformers warns of
    if "time_step_limit" in config:
        config["time_step_limit"] = [0.0, math.inf]
    config.update(_OLDER_KEYS[model_type])
    path.write_text(json.dumps(whole, indent=2))
