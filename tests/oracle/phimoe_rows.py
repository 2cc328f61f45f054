"""Rows of Phi-3.5-MoE."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

# No prompt is longer than the original positions: transformers keeps the short factors there.
_LONGROPE = rope(
    "longrope",
    short_factor=[1.0, 1.1, 1.3, 1.7, 2.0, 2.5],
    long_factor=[1.0, 2.0, 4.0, 8.0, 9.0, 9.5],
    original_max_position_embeddings=64,
    short_mscale=1.3,
    long_mscale=1.3,
)
_ODD: dict[str, Any] = {
    "hidden_size": 36,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 17,
    "num_local_experts": 5,
}

PHIMOE = rows(
    "phimoe",
    {
        **SIZES,
        **ATTENTION,
        "intermediate_size": 24,
        "num_local_experts": 3,
        "router_jitter_noise": 0.2,
    },
    row("two of three experts"),
    row(
        "as published",
        num_local_experts=8,
        router_jitter_noise=0.01,
        attention_bias=True,
        lm_head_bias=True,
    ),
    row(
        "eight experts all near",
        num_local_experts=8,
        router_jitter_noise=2.0,
        tie_word_embeddings=True,
    ),
    row("longrope", rope_parameters=_LONGROPE),
    row("large eps and base a window", rms_norm_eps=0.5, sliding_window=9, earliest_seen=30),
    row("odd sizes", **_ODD, rope_parameters=rope("default", rope_theta=300.0)),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy", rope_parameters=_LONGROPE),
)
