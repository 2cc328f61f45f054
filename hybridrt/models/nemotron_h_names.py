"""Nemotron-H's `config.json`: its keys' names, and its letters for layers, in one spelling."""

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["mamba", "attention", "mlp", "moe"]

_KINDS: Mapping[str, Kind] = {
    **{name: "mamba" for name in ("M", "mamba", "linear_attention")},
    **{name: "attention" for name in ("*", "attention", "full_attention")},
    **{name: "mlp" for name in ("-", "mlp")},
    **{name: "moe" for name in ("E", "moe")},
}
_OTHER_NAMES = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_expand": "expand",
    "mamba_dt_min": "time_step_min",
    "mamba_dt_limit": "time_step_limit",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_chunk_size": "chunk_size",
    "attention_head_dim": "head_dim",
    "layer_types": "layers_block_type",
    "norm_eps": "layer_norm_epsilon",
    "rms_norm_eps": "layer_norm_epsilon",
}


def in_one_spelling(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys under transformers' names, with a kind for every layer.

    Raises:
        ValueError: two names of one key have unlike values, or layers are of no known kind.
    """
    values: dict[str, Any] = {}
    for key, value in config.items():
        name = _OTHER_NAMES.get(key, key)
        if value is not None and values.setdefault(name, value) != value:
            raise ValueError(f"config.json: {key}={value!r} should be {values[name]!r}")
    written = values.pop("hybrid_override_pattern", None)
    kinds = values.get("layers_block_type") or list(written or "")
    unknown = sorted({str(kind) for kind in kinds} - _KINDS.keys())
    if unknown or not kinds:
        raise ValueError(
            f"config.json: layers_block_type or hybrid_override_pattern has {unknown}; it "
            f"should have one of {', '.join(_KINDS)} for each layer"
        )
    values["layers_block_type"] = [_KINDS[kind] for kind in kinds]
    values.setdefault("num_hidden_layers", len(kinds))
    return values
