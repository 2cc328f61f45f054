"""Rows of gpt-oss and MiMo-V2-Flash."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_FULL, _WINDOW = "full_attention", "sliding_attention"
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)

_GPT_OSS: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "num_hidden_layers": 4,
    "head_dim": 12,
    "intermediate_size": 24,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "sliding_window": 9,
}

GPT_OSS = rows(
    "gpt_oss",
    _GPT_OSS,
    row("windows in every second layer"),
    row("layers in another order", layer_types=[_FULL, _FULL, _WINDOW, _WINDOW]),
    row("windows alone", layer_types=[_WINDOW] * 4, sliding_window=20),
    row("a gate that is clamped often", swiglu_alpha=0.9, swiglu_limit=0.6),
    row("no biases of attention tied", attention_bias=False, tie_word_embeddings=True),
    row("plain rope large eps", rope_parameters=rope("default"), rms_norm_eps=0.5),
    row("a head per key one expert", num_key_value_heads=4, num_experts_per_tok=1),
    row(
        "odd sizes",
        hidden_size=40,
        num_attention_heads=5,
        num_key_value_heads=1,
        head_dim=14,
        intermediate_size=23,
        num_local_experts=5,
        num_hidden_layers=3,
        sliding_window=7,
    ),
    row("sizes in whole blocks of 32", hidden_size=64, intermediate_size=32),
    row("legacy config", layout="legacy", rope_parameters={**_YARN, "truncate": False}),
)

_DENSE, _SPARSE = "dense", "sparse"
_MIMO: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 18,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "sliding_window": 9,
    "layer_types": [_FULL, _WINDOW, _WINDOW, _FULL],
}


def _parts(full: float, window: float, **base: float) -> dict[str, Any]:
    """Rotary settings of either type: how much of a head is rotated, and `rope_theta`."""
    return {
        _FULL: rope("default", partial_rotary_factor=full, **base),
        _WINDOW: rope("default", partial_rotary_factor=window),
    }


MIMO_V2_FLASH = rows(
    "mimo_v2_flash",
    _MIMO,
    row("two windows between"),
    row(
        "layers in another order",
        layer_types=[_WINDOW, _WINDOW, _FULL, _WINDOW],
        mlp_layer_types=[_SPARSE, _DENSE, _SPARSE, _DENSE],
    ),
    row("layers as published", layer_types=None, num_hidden_layers=7),
    row(
        "grouped routing scaled",
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
        routed_scaling_factor=2.5,
    ),
    row("values as they come and biases", attention_value_scale=None, attention_bias=True),
    row("values scaled up tied", attention_value_scale=2.0, tie_word_embeddings=True),
    row("unlike parts rotated", rope_parameters=_parts(1.0, 0.6, rope_theta=300.0)),
    row("large eps", rms_norm_eps=0.5),
    row("stacked experts", layout="stacked"),
    row(
        "odd sizes",
        hidden_size=40,
        num_attention_heads=6,
        num_key_value_heads=1,
        head_dim=13,
        v_head_dim=7,
        moe_intermediate_size=23,
        n_routed_experts=5,
        sliding_window=7,
    ),
    row(
        "legacy config",
        layout="legacy",
        num_hidden_layers=7,
        layer_types=None,
        rope_parameters=_parts(0.334, 0.334, rope_theta=5e6),
    ),
)
