"""Rows of Llama 4."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_FULL, _CHUNKED = "full_attention", "chunked_attention"
_LLAMA4: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "num_hidden_layers": 4,
    "head_dim": 12,
    "intermediate_size": 24,
    "intermediate_size_mlp": 72,
    "num_local_experts": 8,
    "attention_chunk_size": 9,
    "floor_scale": 6,
    "attn_scale": 0.4,
}
_LLAMA3_ROPE = rope(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)

LLAMA4 = rows(
    "llama4_text",
    _LLAMA4,
    row("three chunked layers to one full"),
    row("chunked layers between full ones", no_rope_layers=[0, 1, 1, 0]),
    row(
        "types apart from positions",
        layer_types=[_FULL, _CHUNKED, _CHUNKED, _FULL],
        no_rope_layers=[1, 0, 1, 0],
        attn_temperature_tuning=False,
    ),
    row("experts in every second layer", interleave_moe_layer_step=2, num_experts_per_tok=3),
    row("experts in the first layer no norm", moe_layers=[0], use_qk_norm=False),
    row(
        "llama3 rope biases tied",
        rope_parameters=_LLAMA3_ROPE,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    row("large eps wide chunks", rms_norm_eps=0.5, attention_chunk_size=20),
    row(
        "odd sizes",
        hidden_size=40,
        num_attention_heads=5,
        num_key_value_heads=1,
        head_dim=14,
        intermediate_size=23,
        num_local_experts=5,
        attention_chunk_size=7,
    ),
    row("legacy config", layout="legacy", rope_parameters=_LLAMA3_ROPE),
)
