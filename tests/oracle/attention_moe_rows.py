"""Rows of attention models with experts: Qwen, Mixtral, MiniMax-M2, GLM-4.5, OLMoE, Hunyuan."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
_ODD: dict[str, Any] = {
    "hidden_size": 36,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
}

QWEN3_MOE = rows(
    "qwen3_moe",
    {
        **SIZES,
        **ATTENTION,
        "head_dim": 16,
        "moe_intermediate_size": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
    },
    row("experts in every layer"),
    row("weights not normalised", norm_topk_prob=False),
    row("experts every second layer", decoder_sparse_step=2),
    row("some layers without experts", mlp_only_layers=[0, 2]),
    row("a window", use_sliding_window=True, sliding_window=7, earliest_seen=30),
    row("biases tied", attention_bias=True, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, moe_intermediate_size=17, num_experts=5, num_experts_per_tok=1),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy", rope_parameters=_YARN),
)

MIXTRAL = rows(
    "mixtral",
    {**SIZES, **ATTENTION, "intermediate_size": 24, "num_local_experts": 4},
    row("two of four experts"),
    row("one expert per token", num_experts_per_tok=1),
    row("all experts", num_experts_per_tok=4),
    row("a window", sliding_window=7, earliest_seen=30),
    row("head_dim apart from hidden_size tied", head_dim=20, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, intermediate_size=17, num_local_experts=5),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)

MINIMAX_M2 = rows(
    "minimax_m2",
    {
        **SIZES,
        **ATTENTION,
        "head_dim": 16,
        "intermediate_size": 24,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "rotary_dim": 8,
    },
    row("half of a head rotated"),
    row("a head rotated", rotary_dim=16, num_key_value_heads=4),
    row("few rotated", rope_parameters=rope("linear", factor=3.0, partial_rotary_factor=0.25)),
    row("one expert per token tied", num_experts_per_tok=1, tie_word_embeddings=True),
    row("large eps", rms_norm_eps=0.5),
    row("odd sizes", **_ODD, rotary_dim=6, intermediate_size=17, num_local_experts=5),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)

GLM4_MOE = rows(
    "glm4_moe",
    {
        **SIZES,
        **ATTENTION,
        "head_dim": 16,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
    },
    row("half of a head rotated"),
    row("normed queries", use_qk_norm=True, attention_bias=True),
    row("grouped routing", n_group=4, topk_group=2, routed_scaling_factor=2.5),
    row("weights not normalised", norm_topk_prob=False, n_shared_experts=2),
    row("no layer without experts tied", first_k_dense_replace=0, tie_word_embeddings=True),
    row("a head rotated", rope_parameters=rope("default", partial_rotary_factor=1.0)),
    row("large eps and base", rms_norm_eps=0.5, use_qk_norm=True, rope_parameters=_SHORT_WAVES),
    row(
        "odd sizes",
        **_ODD,
        rope_parameters=rope("default", partial_rotary_factor=0.6),
        moe_intermediate_size=17,
        n_routed_experts=5,
        num_experts_per_tok=1,
    ),
    row("multi token prediction", layout="extra layer"),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)

OLMOE = rows(
    "olmoe",
    {**SIZES, **ATTENTION, "intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 3},
    row("experts in every layer"),
    row("weights normalised", norm_topk_prob=True),
    row("biases tied", attention_bias=True, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **{**_ODD, "head_dim": 6}, intermediate_size=17, num_experts=5),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)

QWEN2_MOE = rows(
    "qwen2_moe",
    {
        **SIZES,
        **ATTENTION,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "num_experts": 8,
        "num_experts_per_tok": 3,
    },
    row("a shared expert behind a gate"),
    row("weights normalised", norm_topk_prob=True),
    row("no bias tied", qkv_bias=False, tie_word_embeddings=True),
    row("experts every second layer", decoder_sparse_step=2),
    row("some layers without experts", mlp_only_layers=[0, 2]),
    row("every second layer a window", use_sliding_window=True, sliding_window=6),
    row("a window that is not used", sliding_window=4),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **{**_ODD, "head_dim": 6}, shared_expert_intermediate_size=15, num_experts=5),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy", rope_parameters=_YARN),
)

HUNYUAN_V1_MOE = rows(
    "hunyuan_v1_moe",
    {
        **SIZES,
        **ATTENTION,
        "head_dim": 16,
        "intermediate_size": 24,
        "num_experts": 4,
        "moe_topk": 2,
        "pad_token_id": None,
    },
    row("experts beside an MLP"),
    row("one expert per token tied", moe_topk=1, tie_word_embeddings=True),
    row("biases", attention_bias=True, moe_topk=[3, 3, 3]),
    row("large eps", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, intermediate_size=17, num_experts=5),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)
