"""Rows of Qwen3-Next and Qwen3.5."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

DELTA_NET: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
MOE: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}
ODD: dict[str, Any] = {
    "hidden_size": 45,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 10,
    "rope_parameters": rope("default", partial_rotary_factor=0.6),
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 7,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 3,
}
_ATTENTION_LAST: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": None,
    "tie_word_embeddings": True,
}
_ATTENTION_FIRST: dict[str, Any] = {
    "layer_types": ["full_attention", "linear_attention", "full_attention"],
    "rms_norm_eps": 0.5,
}

QWEN3_NEXT = rows(
    "qwen3_next",
    {**DELTA_NET, **MOE},
    row("attention in the middle"),
    row("attention in every fourth layer tied", **_ATTENTION_LAST),
    row("attention first and last large eps", **_ATTENTION_FIRST),
    row("no attention", layer_types=["linear_attention"] * 3),
    row("attention only with biases", layer_types=["full_attention"] * 3, attention_bias=True),
    row("mlp in some layers", mlp_only_layers=[0], decoder_sparse_step=2),
    row("weights not normalised", norm_topk_prob=False, num_experts_per_tok=1),
    row("a key head for all", linear_num_key_heads=1, rope_parameters=rope("linear", factor=3.0)),
    row("all of each head rotated", rope_parameters=rope("default", partial_rotary_factor=1.0)),
    row("odd sizes", **ODD, moe_intermediate_size=11, shared_expert_intermediate_size=13),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy", **_ATTENTION_LAST),
)

MROPE = rope(
    "default",
    partial_rotary_factor=0.5,
    mrope_section=[2, 1, 1],
    mrope_interleaved=True,
    rope_theta=300.0,
)

QWEN3_5 = rows(
    "qwen3_5_text",
    DELTA_NET,
    row("attention in the middle"),
    row("attention in every fourth layer tied", **_ATTENTION_LAST),
    row("attention first and last large eps", **_ATTENTION_FIRST),
    row("attention only with biases", layer_types=["full_attention"] * 3, attention_bias=True),
    row("a key head for all", linear_num_key_heads=1, linear_conv_kernel_dim=2),
    row("multimodal rope", rope_parameters=MROPE),
    row("odd sizes", **ODD),
    row("within a multimodal checkpoint", layout="multimodal", rope_parameters=MROPE),
)

QWEN3_5_MOE = rows(
    "qwen3_5_moe_text",
    {**DELTA_NET, **MOE},
    row("attention in the middle"),
    row("attention in every fourth layer tied", **_ATTENTION_LAST),
    row("attention first and last large eps", **_ATTENTION_FIRST),
    row("one expert per token", num_experts_per_tok=1, linear_num_key_heads=4),
    row("odd sizes", **ODD, moe_intermediate_size=11, shared_expert_intermediate_size=13),
    row("stacked experts", layout="stacked", rope_parameters=MROPE),
)
