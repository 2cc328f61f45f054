"""Rows of RecurrentGemma."""

from typing import Any

from tests.oracle.rows import SIZES, rope, row, rows

_RECURRENT, _ATTENTION = "recurrent", "attention"
_GRIFFIN: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "intermediate_size": 144,
    "attention_window_size": 9,
}


def _rotated(part: float, base: float = 10_000.0) -> dict[str, Any]:
    return rope("default", partial_rotary_factor=part, rope_theta=base)


RECURRENT_GEMMA = rows(
    "recurrent_gemma",
    _GRIFFIN,
    row("two recurrent blocks to one of attention"),
    row("attention first and last", block_types=[_ATTENTION, _RECURRENT, _RECURRENT]),
    row("recurrent blocks alone", block_types=[_RECURRENT], num_hidden_layers=3),
    row(
        "attention alone with biases",
        earliest_seen=15,
        block_types=[_ATTENTION],
        num_hidden_layers=3,
        attention_window_size=20,
        attention_bias=True,
    ),
    row("wide recurrence narrow convolution", lru_width=64, conv1d_width=2),
    row(
        "untied low soft cap large eps",
        tie_word_embeddings=False,
        logits_soft_cap=8.0,
        rms_norm_eps=0.5,
    ),
    row("all of a head rotated", rope_parameters=_rotated(1.0, 300.0), num_key_value_heads=2),
    row(
        "odd sizes",
        hidden_size=40,
        num_attention_heads=5,
        intermediate_size=103,
        lru_width=35,
        attention_window_size=7,
    ),
    row("legacy config", layout="legacy", rope_parameters=_rotated(0.5, 300.0)),
)
