"""Rows of models with LayerNorm: Command R, Command A, Nemotron, StarCoder2, StableLM."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_LINEAR = rope("linear", factor=3.0)
_FEW_SHORT_WAVES = rope("default", rope_theta=300.0, partial_rotary_factor=0.34)
_ALL = rope("default", partial_rotary_factor=1.0)
_ODD: dict[str, Any] = {
    "hidden_size": 36,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 51,
}
_BASE: dict[str, Any] = {**SIZES, **ATTENTION, "tie_word_embeddings": False, "pad_token_id": None}

COHERE = rows(
    "cohere",
    {**_BASE, "logit_scale": 0.7},
    row("side by side"),
    row("biases", attention_bias=True, num_key_value_heads=4),
    row("tied embeddings", tie_word_embeddings=True, logit_scale=1.4),
    row("large eps and base", layer_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes linear rope", **_ODD, rope_parameters=_LINEAR),
    row("legacy config", layout="legacy"),
)

COHERE2 = rows(
    "cohere2",
    {**_BASE, "logit_scale": 0.7, "num_hidden_layers": 4, "sliding_window": 6},
    row("every fourth layer without a window"),
    row("windows by layer types", layer_types=["full_attention", "sliding_attention"] * 2),
    # Keys' biases are without effect where there are no positions.
    row(
        "windows only biases tied",
        attention_bias=True,
        tie_word_embeddings=True,
        layer_types=["sliding_attention"] * 4,
        earliest_seen=32,
    ),
    row("large eps and base", layer_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes linear rope", **_ODD, rope_parameters=_LINEAR, sliding_window=5),
    row("legacy config", layout="legacy"),
)

NEMOTRON = rows(
    "nemotron",
    _BASE,
    row("half of a head rotated"),
    row("a head rotated", rope_parameters=rope("default", partial_rotary_factor=1.0)),
    row("biases tied", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    row("head_dim apart from hidden_size", head_dim=20),
    row("large eps and base", norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, head_dim=12),
    row("legacy config", layout="legacy"),
)

STARCODER2 = rows(
    "starcoder2",
    _BASE,
    row("biases"),
    row("no biases tied", use_bias=False, tie_word_embeddings=True),
    row("a window", sliding_window=7, earliest_seen=30),
    row("large eps and base", norm_epsilon=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes linear rope", **_ODD, rope_parameters=_LINEAR),
    row("legacy config", layout="legacy"),
)

STABLELM = rows(
    "stablelm",
    {**_BASE, "rope_parameters": rope("default", partial_rotary_factor=0.5)},
    row("half of a head rotated"),
    row("side by side", use_parallel_residual=True),
    row("biases tied", use_qkv_bias=True, tie_word_embeddings=True),
    row("large eps and base", layer_norm_eps=0.5, rope_parameters=_FEW_SHORT_WAVES),
    row("odd sizes", **_ODD, use_parallel_residual=True, rope_parameters=_ALL),
    row("legacy config", layout="legacy", num_key_value_heads=2, num_attention_heads=6),
)
