"""MiMo-V2-Flash's `config.json` in one spelling: today's, or that of its publication."""

from collections.abc import Mapping
from typing import Any

from hybridrt.layers.rope import RopeConfig, rope_by_layer_type
from hybridrt.models.checks import check_one_for_each_layer

_THETAS = (
    ("full_attention", "rope_theta", 5_000_000.0),
    ("sliding_attention", "swa_rope_theta", 10_000.0),
)
ROTATED = 0.334
"""How much of a head is rotated where a config doesn't say."""


def in_one_spelling(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys under transformers' names, with rotary settings for each type of layer.

    Raises:
        ValueError: layers with windows differ in a way that there are no keys for.
    """
    values, layers = dict(config), range(config.get("num_hidden_layers") or 0)
    if (eps := values.pop("layernorm_epsilon", None)) is not None:
        values["rms_norm_eps"] = eps
    if (window := values.pop("sliding_window_size", None)) is not None:
        values["sliding_window"] = window + 1  # it counted the tokens before
    slides = values.pop("hybrid_layer_pattern", None) or [i > 0 and (i + 1) % 6 for i in layers]
    values["layer_types"] = values.get("layer_types") or [
        "sliding_attention" if it_does else "full_attention" for it_does in slides
    ]
    routed = values.pop("moe_layer_freq", None) or [i > 0 for i in layers]
    values["mlp_layer_types"] = values.get("mlp_layer_types") or [
        "sparse" if it_is else "dense" for it_is in routed
    ]
    types = {key: values[key] for key in ("layer_types", "mlp_layer_types")}
    check_one_for_each_layer(len(layers), **types)
    for key in ("num_attention_heads", "head_dim", "v_head_dim"):
        given = values.pop(f"swa_{key}", None)
        if given not in (None, values.get(key)):
            raise ValueError(f"config.json: swa_{key}={given} should be {key}={values.get(key)}")
    values["rope_parameters"] = _ropes(values)
    return values


def _ropes(values: dict[str, Any]) -> dict[str, RopeConfig]:
    """The rotary settings of each type of layer; takes the older keys out of `values`."""
    part = values.pop("partial_rotary_factor", None) or ROTATED
    defaults = {
        layer_type: {"rope_theta": values.pop(key, None) or theta, "partial_rotary_factor": part}
        for layer_type, key, theta in _THETAS
    }
    scaling = values.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) == "default":
        del values["rope_scaling"]
    return rope_by_layer_type(values, defaults)
