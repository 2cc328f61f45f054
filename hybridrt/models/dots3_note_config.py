"""The `config.json` of Dots 3 Note in the words of its publication, and in today's."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import PositiveInt

from hybridrt.layers.rope import RopeConfig, rope_by_layer_type
from hybridrt.models.checks import check_one_for_each_layer
from hybridrt.values import Value

LayerType = Literal["full_attention", "sliding_attention", "indexed_attention"]

_OF_WINDOWS = {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}


class LayerSizes(Value):
    """What a layer has in place of the model's own size of that name."""

    num_attention_heads: PositiveInt | None = None
    num_key_value_heads: PositiveInt | None = None
    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    qk_nope_head_dim: PositiveInt | None = None
    qk_rope_head_dim: PositiveInt | None = None
    v_head_dim: PositiveInt | None = None


def in_todays_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the keys that transformers has for them, all lists written out."""
    values, count = dict(config), config.get("num_hidden_layers") or 46
    uses_index = values.pop("use_dsa", None if "per_layer_config" in config else True)
    values["layer_types"] = _layer_types(
        values.get("layer_types"), count, values.pop("use_sliding_window", True), uses_index
    )
    first, every = values.pop("first_k_dense_replace", 1), values.pop("moe_layer_freq", None) or 1
    routed = every if isinstance(every, list) else [i % every == 0 for i in range(count)]
    check_one_for_each_layer(count, moe_layer_freq=routed[:count])
    values["mlp_layer_types"] = values.get("mlp_layer_types") or [
        "sparse" if i >= first and routed[i] else "dense" for i in range(count)
    ]
    types = {key: values[key] for key in ("layer_types", "mlp_layer_types")}
    check_one_for_each_layer(count, **types)
    shared = values.pop("moe_shared_expert_intermediate_size", None)
    if shared is not None:
        values["shared_experts_intermediate_size"] = shared
    window = values.pop("sliding_window_size", None) or 512
    values["sliding_window"] = values.get("sliding_window") or window
    sizes = {key: values.pop(f"swa_{key}", size) for key, size in _OF_WINDOWS.items()}
    rotated = sizes["head_dim"] - sizes["qk_nope_head_dim"]
    sizes["qk_rope_head_dim"] = values.pop("swa_qk_rope_head_dim", rotated)
    slides = (i for i, kind in enumerate(values["layer_types"]) if kind == "sliding_attention")
    own = values.pop("per_layer_config", dict.fromkeys(slides, sizes)) or {}
    values["per_layer_config"] = {int(i): LayerSizes(**of_layer) for i, of_layer in own.items()}
    values["rope_parameters"] = _ropes(values)
    return values


def _layer_types(
    given: list[str] | None, count: int, has_windows: bool, uses_index: bool | None
) -> list[str]:
    """Whether a layer that sees everything is indexed is said twice in older files."""
    types = given or [
        "sliding_attention" if has_windows and i >= 2 and i % 4 != 1 else "indexed_attention"
        for i in range(count)
    ]
    if uses_index is None:
        return types
    all_of_it = {"full_attention", "indexed_attention"}
    kind = "indexed_attention" if uses_index else "full_attention"
    return [kind if layer_type in all_of_it else layer_type for layer_type in types]


def _ropes(values: dict[str, Any]) -> dict[str, RopeConfig]:
    """The rotary settings of each type of layer; takes the older keys out of `values`."""
    of_windows = values.pop("swa_rope_theta", None) or 50_000.0
    theta = values.pop("rope_theta", None) or 80_000_000.0
    scaling = values.pop("rope_scaling", None)
    given = scaling or values.get("rope_parameters")
    kinds: tuple[LayerType, ...] = ("full_attention", "sliding_attention", "indexed_attention")
    if given and not given.keys() & set(kinds):
        given = {kind: dict(given) for kind in kinds}
    slow = of_windows if not given else theta
    defaults = {
        kind: {"rope_theta": slow if kind == "sliding_attention" else theta} for kind in kinds
    }
    return rope_by_layer_type({**values, "rope_parameters": given}, defaults)
