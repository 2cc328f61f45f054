"""DeepSeek-V4's `config.json` in one spelling: today's, or that of the releases."""

from collections.abc import Mapping
from typing import Any, Literal

from hybridrt.layers.rope import RopeConfig, read_rope_parameters

Compressed = Literal["compressed_sparse_attention", "heavily_compressed_attention"]
LayerType = Literal["sliding_attention", Compressed]

_OF_RATIO: Mapping[int, LayerType] = {
    0: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}
_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
_RATE_KEYS = ("compress_rate_csa", "compress_rate_hca")


def in_one_spelling(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys under transformers' names, with a type for every layer and two rotations.

    Raises:
        ValueError: layers are compressed by another ratio than a release's.
    """
    values, layers = dict(config), config.get("num_hidden_layers") or 0
    if values.get("partial_rotary_factor") is None:
        rotated = values.get("qk_rope_head_dim")
        share = 64 / 512 if rotated is None else rotated / (values.get("head_dim") or 512)
        values["partial_rotary_factor"] = share
    values["layer_types"] = _layer_types(values, layers)
    values["compress_rates"] = _rates(values)
    hashed = values.pop("num_hash_layers", None)
    if values.get("mlp_layer_types") is None:
        hashed = min(layers, 3 if hashed is None else hashed)
        values["mlp_layer_types"] = ["hash_moe"] * hashed + ["moe"] * (layers - hashed)
    values["rope_parameters"] = _ropes(values)
    values.pop("compress_rope_theta", None)
    return values


def _layer_types(values: dict[str, Any], layers: int) -> list[LayerType]:
    """Listed by name, or by how many tokens an entry is of; else two kinds by turns."""
    ratios = values.pop("compress_ratios", None)
    if values.get("layer_types") is not None:
        return values["layer_types"][:layers]
    if ratios is not None:
        unknown = sorted(set(ratios[:layers]) - _OF_RATIO.keys())
        if unknown:
            raise ValueError(
                f"config.json: compress_ratios has {unknown}; should have {sorted(_OF_RATIO)} only"
            )
        return [_OF_RATIO[ratio] for ratio in ratios[:layers]]
    return [_OF_RATIO[4 if i > 1 and i % 2 else 128] for i in range(layers)]


def _rates(values: dict[str, Any]) -> dict[str, int]:
    """Tokens of an entry, by type of layer."""
    rates = dict(values.get("compress_rates") or _RATES)
    for key, layer_type in zip(_RATE_KEYS, _RATES, strict=True):
        rate = values.pop(key, None)
        if rate is not None:
            rates[layer_type] = rate
    return rates


def _ropes(values: dict[str, Any]) -> dict[str, RopeConfig]:
    """Two rotations: a plain one, and for layers that compress one that may be stretched."""
    given = dict(values.get("rope_scaling") or values.get("rope_parameters") or {})
    if not {"main", "compress"} <= given.keys():
        compress = {**given, "rope_theta": values.get("compress_rope_theta", 160_000.0)}
        if "yarn" in (given.get("rope_type"), given.get("type")):
            compress.setdefault("attention_factor", 1.0)
        given = {"main": {"rope_theta": values.get("rope_theta", 10_000.0)}, "compress": compress}
    whole = {
        "partial_rotary_factor": values["partial_rotary_factor"],
        "max_position_embeddings": values.get("max_position_embeddings", 1_048_576),
    }
    return {label: _rope({**whole, **given[label]}) for label in ("main", "compress")}


def _rope(entry: dict[str, Any]) -> RopeConfig:
    longest = entry["max_position_embeddings"]
    read = {"rope_parameters": entry, "max_position_embeddings": longest}
    return RopeConfig(**read_rope_parameters(read))
