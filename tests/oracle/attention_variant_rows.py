"""Rows of further models close to Llama, without experts."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_LINEAR = rope("linear", factor=3.0)
_ALPHA = rope("dynamic", alpha=50.0, factor=1.0)
_HALF = rope("default", partial_rotary_factor=0.5)
_ODD: dict[str, Any] = {
    "hidden_size": 36,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "intermediate_size": 51,
}
_ODD_SQUARE = {key: value for key, value in _ODD.items() if key != "head_dim"}
_PLAIN: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "head_dim": 16,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}

SEED_OSS = rows(
    "seed_oss",
    _PLAIN,
    row("biased queries keys and values"),
    row("biases", attention_out_bias=True, mlp_bias=True),
    row("no bias but the output's tied", attention_bias=False, attention_out_bias=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, tie_word_embeddings=True, rope_parameters=_LINEAR),
    row("legacy config", layout="legacy"),
)

ERNIE4_5 = rows(
    "ernie4_5",
    _PLAIN,
    row("pairs of neighbours"),
    row("biases tied", use_bias=True, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("one key head linear rope", num_key_value_heads=1, rope_parameters=_LINEAR),
    row("odd sizes", **_ODD),
    row("legacy config", layout="legacy"),
)

HELIUM = rows(
    "helium",
    {**_PLAIN, "head_dim": 12},
    row("pairs of neighbours"),
    row("biases tied", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("one key head linear rope", num_key_value_heads=1, rope_parameters=_LINEAR),
    row("odd sizes", **{**_ODD, "head_dim": 6}),
    row("legacy config", layout="legacy"),
)

HUNYUAN_V1_DENSE = rows(
    "hunyuan_v1_dense",
    _PLAIN,
    row("norms behind the rotation"),
    row("a stretched base tied", rope_parameters=_ALPHA, tie_word_embeddings=True),
    row("biases", attention_bias=True, num_key_value_heads=4),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD),
    row("legacy config", layout="legacy", rope_parameters=_ALPHA),
)

_MULTIPLIED: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "embedding_multiplier": 2.0,
    "logits_scaling": 0.8,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.4,
}
_MULTIPLIERS = ("embedding_multiplier", "logits_scaling", "residual_multiplier")

GRANITE = rows(
    "granite",
    _MULTIPLIED,
    row("multipliers"),
    row("other multipliers tied", residual_multiplier=1.5, tie_word_embeddings=True),
    row("no multipliers", **dict.fromkeys(_MULTIPLIERS, 1.0), attention_multiplier=0.3),
    row("biases", attention_bias=True, mlp_bias=True, num_key_value_heads=4),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD_SQUARE, rope_parameters=_LINEAR),
    row("legacy config", layout="legacy"),
)


def _longrope(pairs: int) -> dict[str, Any]:
    return rope(
        "longrope",
        short_factor=[1.0 + 0.25 * i for i in range(pairs)],
        long_factor=[2.0 + 1.5 * i for i in range(pairs)],
    )


PHI3 = rows(
    "phi3",
    {**_PLAIN, "num_key_value_heads": 4},
    row("fused projections"),
    row("grouped heads and a window", num_key_value_heads=2, sliding_window=7, earliest_seen=30),
    row("half of a head rotated tied", rope_parameters=_HALF, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row(
        "longrope short",
        head_dim=12,
        rope_parameters=_longrope(6),
        original_max_position_embeddings=64,
    ),
    row(
        "longrope long",
        head_dim=12,
        rope_parameters=_longrope(6),
        original_max_position_embeddings=16,
        prompt_lengths=(17, 18, 25, 41),
    ),
    row("odd sizes", **_ODD),
    row(
        "legacy config",
        layout="legacy",
        head_dim=12,
        rope_parameters={**_longrope(3), "partial_rotary_factor": 0.5},
        original_max_position_embeddings=64,
    ),
)

GLM = rows(
    "glm",
    _PLAIN,
    row("half of a head rotated"),
    row("no biases tied", attention_bias=False, tie_word_embeddings=True),
    row("a head rotated", rope_parameters=rope("default", partial_rotary_factor=1.0)),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters={**_HALF, "rope_theta": 300.0}),
    row("odd sizes", **{**_ODD, "head_dim": 12}, num_hidden_layers=2),
    row("legacy config", layout="legacy"),
)

GLM4 = rows(
    "glm4",
    _PLAIN,
    row("norms before and behind"),
    row("no biases tied", attention_bias=False, tie_word_embeddings=True),
    row("a head rotated", rope_parameters=rope("default", partial_rotary_factor=1.0)),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters={**_HALF, "rope_theta": 300.0}),
    row("odd sizes", **{**_ODD, "head_dim": 12}, num_hidden_layers=2),
    row("legacy config", layout="legacy"),
)

ARCEE = rows(
    "arcee",
    _PLAIN,
    row("squared relu"),
    row("biases tied", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("one key head linear rope", num_key_value_heads=1, rope_parameters=_LINEAR),
    row("odd sizes", **_ODD),
    row("legacy config", layout="legacy"),
)

_LLAMA3 = rope(
    "llama3",
    factor=8.0,
    original_max_position_embeddings=32,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
)

APERTUS = rows(
    "apertus",
    {key: value for key, value in _PLAIN.items() if key != "head_dim"},
    row("grouped heads"),
    row("biases tied", attention_bias=True, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("one key head llama3 rope", num_key_value_heads=1, rope_parameters=_LLAMA3),
    row("odd sizes", **_ODD_SQUARE, rope_parameters=_LINEAR),
    row("legacy config", layout="legacy", rope_parameters=_LLAMA3),
)
