"""Rows of GPT-NeoX."""

from typing import Any

from tests.oracle.rows import SIZES, rope, row, rows

_ODD: dict[str, Any] = {"hidden_size": 42, "num_attention_heads": 3, "intermediate_size": 51}


def _part(share: float, rope_type: str = "default", **others: float) -> dict[str, Any]:
    return rope(rope_type, partial_rotary_factor=share, **others)


GPT_NEOX = rows(
    "gpt_neox",
    {
        **SIZES,
        "num_attention_heads": 4,
        "intermediate_size": 72,
        "max_position_embeddings": 256,
        "rope_parameters": _part(0.5),
    },
    row("side by side"),
    row("one behind the other", use_parallel_residual=False),
    row("a quarter of a head tied", hidden_size=64, rope_parameters=None, tie_word_embeddings=True),
    row("no biases of attention", attention_bias=False, hidden_act="gelu_fast"),
    row("large eps and base", layer_norm_eps=0.5, rope_parameters=_part(1.0, rope_theta=300.0)),
    row("odd sizes linear rope", **_ODD, rope_parameters=_part(0.3, "linear", factor=3.0)),
    row("legacy config", layout="legacy", hidden_act="gelu_new", rope_parameters=_part(0.34)),
)
