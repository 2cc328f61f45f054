"""Rows of OLMo 3, EXAONE 4 and Ministral: layers with windows among others, queries that grow."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_SLIDING, _FULL = "sliding_attention", "full_attention"
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
_SHORT_WAVES = rope("default", rope_theta=300.0)
_GROWING = rope(
    "yarn",
    factor=4.0,
    original_max_position_embeddings=16,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
    llama_4_scaling_beta=0.5,
)
_GROWTH = rope("linear", factor=2.0, original_max_position_embeddings=8, llama_4_scaling_beta=1.0)
_FASTER = {"original_max_position_embeddings": 5, "llama_4_scaling_beta": 0.3}
_ODD: dict[str, Any] = {
    "hidden_size": 36,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 51,
}
_BASE: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "pad_token_id": None,
    "num_hidden_layers": 4,
    "sliding_window": 6,
}


def _ropes(full: dict[str, Any], sliding: dict[str, Any]) -> dict[str, Any]:
    return {_FULL: full, _SLIDING: sliding}


OLMO3 = rows(
    "olmo3",
    _BASE,
    row("every fourth layer without a window"),
    row("windows by layer types", layer_types=[_FULL, _SLIDING, _SLIDING, _FULL]),
    row("yarn where there is no window", rope_parameters=_ropes(_YARN, _SHORT_WAVES)),
    row("biases tied", attention_bias=True, tie_word_embeddings=True, num_key_value_heads=4),
    row("large eps", rms_norm_eps=0.5),
    row("no window", layer_types=[_FULL] * 4),
    row("odd sizes", **_ODD, sliding_window=5),
)

EXAONE4 = rows(
    "exaone4",
    {**_BASE, "head_dim": 16},
    row("every fourth layer without a window"),
    row("every second layer without a window", sliding_window_pattern=2),
    row("windows by layer types", layer_types=[_FULL, _SLIDING, _SLIDING, _FULL]),
    row(
        "no window tied",
        sliding_window=None,
        layer_types=[_FULL] * 3,
        num_hidden_layers=3,
        tie_word_embeddings=True,
    ),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes yarn rope", **_ODD, head_dim=10, sliding_window=5, rope_parameters=_YARN),
    row("legacy config", layout="legacy", rope_parameters=_YARN),
)

MINISTRAL = rows(
    "ministral",
    {**_BASE, "num_hidden_layers": 3, "head_dim": 12, "sliding_window": 8},
    row("windows", earliest_seen=30),
    row("windows by layer types", layer_types=[_FULL, _SLIDING, _FULL]),
    row("everything is seen tied", layer_types=[_FULL] * 3, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES, earliest_seen=30),
    row("odd sizes", **_ODD, head_dim=10, layer_types=[_SLIDING, _SLIDING, _FULL]),
)

MINISTRAL3 = rows(
    "ministral3",
    {
        **_BASE,
        "num_hidden_layers": 3,
        "head_dim": 16,
        "sliding_window": None,
        "rope_parameters": _GROWING,
    },
    row("queries that grow"),
    row("grouped heads tied", num_key_value_heads=1, tie_word_embeddings=True),
    row("growth alone", rope_parameters=_GROWTH),
    row("a window", sliding_window=7, earliest_seen=30),
    row("large eps faster growth", rms_norm_eps=0.5, rope_parameters={**_GROWING, **_FASTER}),
    row("odd sizes", **_ODD, head_dim=10),
)
