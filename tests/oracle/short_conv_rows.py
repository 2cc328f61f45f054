"""Rows of LFM2, with and without experts, LFM3, and both as parts of larger models."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_LFM: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "block_multiple_of": 16,
    "layer_types": ["conv", "full_attention", "conv"],
}
_ORDERS: dict[str, list[str]] = {
    "attention first and last": ["full_attention", "conv", "conv", "full_attention"],
    "attention only": ["full_attention"] * 4,
}
_ODD: dict[str, Any] = {
    "hidden_size": 42,
    "intermediate_size": 35,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "conv_L_cache": 5,
}


LFM2 = rows(
    "lfm2",
    _LFM,
    row("attention in the middle"),
    *(row(name, layer_types=types, num_hidden_layers=4) for name, types in _ORDERS.items()),
    # Four of them see 8 tokens back.
    row("convolutions only", layer_types=["conv"] * 4, num_hidden_layers=4, earliest_seen=34),
    row("apart embeddings", tie_word_embeddings=False),
    row("biases of convolutions", conv_bias=True),
    row("head_dim apart from hidden_size", head_dim=20),
    row("large eps and short waves", norm_eps=0.5, rope_parameters=rope("linear", factor=3.0)),
    row("size adjusted", intermediate_size=100, block_ffn_dim_multiplier=1.3),
    row("size as it stands", block_auto_adjust_ff_dim=False),
    row("odd sizes", **_ODD, block_multiple_of=7),
    row("legacy config", layout="legacy"),
)

LFM2_VL = rows(
    "lfm2_vl",
    _LFM,
    row("beside images"),
    row("apart embeddings", tie_word_embeddings=False, conv_bias=True),
    row("attention only", layer_types=_ORDERS["attention only"], num_hidden_layers=4),
    row("odd sizes", **_ODD, block_multiple_of=7),
)

LFM2_MOE = rows(
    "lfm2_moe",
    {
        **{key: value for key, value in _LFM.items() if key != "block_multiple_of"},
        "moe_intermediate_size": 24,
        "num_dense_layers": 1,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "routed_scaling_factor": 1.7,
    },
    row("attention in the middle"),
    *(row(name, layer_types=types, num_hidden_layers=4) for name, types in _ORDERS.items()),
    # Four of them see 8 tokens back.
    row("convolutions only", layer_types=["conv"] * 4, num_hidden_layers=4, earliest_seen=34),
    row("experts in every layer", num_dense_layers=0, tie_word_embeddings=False),
    row("no bias for the choice", use_expert_bias=False, routed_scaling_factor=1.0),
    row("weights not normalised", norm_topk_prob=False, conv_bias=True),
    row("odd sizes", **_ODD, moe_intermediate_size=11),
    row("stacked experts", layout="stacked", norm_eps=0.5),
)


def _ropes(full: dict[str, Any], sliding: dict[str, Any]) -> dict[str, Any]:
    return {"full_attention": full, "sliding_attention": sliding}


_MIXED = ["conv", "full_attention", "sliding_attention", "conv"]

_LFM3: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "num_hidden_layers": 4,
    "head_dim": 12,
    "pad_token_id": None,
    "sliding_window": 9,
    "layer_types": _MIXED,
}

LFM3 = rows(
    "lfm3",
    _LFM3,
    row("full and sliding attention"),
    row("layers by default", num_hidden_layers=5, layer_types=None),
    row(
        "sliding attention first and last",
        layer_types=_MIXED[2:] + _MIXED[:2] + ["sliding_attention"],
        num_hidden_layers=5,
    ),
    row("no gates and biases", use_attention_gate=False, attention_bias=True),
    row("norms in front alone", use_sandwich_norm=False, tie_word_embeddings=False),
    row(
        "other waves",
        rope_parameters=_ropes(
            rope("proportional", rope_theta=300.0, partial_rotary_factor=0.7, factor=2.0),
            rope("linear", factor=3.0),
        ),
    ),
    row(
        "plain waves large eps",
        norm_eps=0.5,
        conv_bias=True,
        rope_parameters=_ropes(rope("default"), rope("default")),
    ),
    row("odd sizes", **_ODD, head_dim=10, sliding_window=5),
)

LFM3_VL = rows(
    "lfm3_vl",
    _LFM3,
    row("beside images"),
    row("apart embeddings", tie_word_embeddings=False, use_attention_gate=False),
    row(
        "plain waves large eps",
        norm_eps=0.5,
        conv_bias=True,
        rope_parameters=_ropes(rope("default"), rope("default")),
    ),
    row("odd sizes", **_ODD, head_dim=10, sliding_window=5),
)
