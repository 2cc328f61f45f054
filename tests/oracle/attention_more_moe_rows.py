"""Rows of further models with experts: Granite, dots.llm1, ERNIE 4.5, K-EXAONE, FlexOlmo, Solar."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_LINEAR = rope("linear", factor=3.0)
_ODD: dict[str, Any] = {"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 3}

_GRANITE: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "intermediate_size": 24,
    "num_local_experts": 4,
    "embedding_multiplier": 2.0,
    "logits_scaling": 0.8,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.4,
}

GRANITEMOE = rows(
    "granitemoe",
    _GRANITE,
    row("two of four experts"),
    row("one expert per token tied", num_experts_per_tok=1, tie_word_embeddings=True),
    row("all experts biases", num_experts_per_tok=4, attention_bias=True),
    row("other multipliers", residual_multiplier=1.5, logits_scaling=1.2, attention_multiplier=0.2),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, intermediate_size=17, num_local_experts=5, rope_parameters=_LINEAR),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)

GRANITEMOESHARED = rows(
    "granitemoeshared",
    {**_GRANITE, "shared_intermediate_size": 40},
    row("a shared expert"),
    row("no shared expert", shared_intermediate_size=0),
    row("one expert per token tied", num_experts_per_tok=1, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, shared_intermediate_size=15, num_local_experts=5),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)

DOTS1 = rows(
    "dots1",
    {
        **SIZES,
        **ATTENTION,
        "head_dim": 16,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "first_k_dense_replace": 1,
    },
    row("an MLP then experts"),
    row("grouped routing", n_group=4, topk_group=2, routed_scaling_factor=2.5),
    row("weights normalised two shared experts", norm_topk_prob=True, n_shared_experts=2),
    row("windows from the second layer on", sliding_window=6, max_window_layers=1),
    row("biases tied", attention_bias=True, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, head_dim=10, moe_intermediate_size=17, n_routed_experts=5),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy", rope_parameters=_LINEAR),
)

ERNIE4_5_MOE = rows(
    "ernie4_5_moe",
    {
        **SIZES,
        **ATTENTION,
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "moe_intermediate_size": 24,
        "moe_num_experts": 8,
        "moe_k": 3,
    },
    row("an MLP then experts"),
    row("biases one shared expert", use_bias=True, moe_num_shared_experts=1),
    row("no shared expert tied", moe_num_shared_experts=0, tie_word_embeddings=True),
    row("biases tied", use_bias=True, tie_word_embeddings=True),
    row("experts in the middle", num_hidden_layers=4, moe_layer_end_index=2),
    row("experts in every second layer", moe_layer_start_index=0, moe_layer_interval=2),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, moe_intermediate_size=17, moe_num_experts=5),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)

EXAONE_MOE = rows(
    "exaone_moe",
    {
        **SIZES,
        **ATTENTION,
        "head_dim": 16,
        "num_hidden_layers": 4,
        "sliding_window": 6,
        "moe_intermediate_size": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
    },
    row("windows and experts"),
    row("grouped routing", n_group=4, topk_group=2, routed_scaling_factor=0.8),
    row("weights not normalised", norm_topk_prob=False, num_shared_experts=2),
    row("MLPs elsewhere", mlp_layer_types=["sparse", "dense", "dense", "sparse"]),
    row(
        "every second layer without a window tied",
        sliding_window_pattern=2,
        tie_word_embeddings=True,
    ),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, head_dim=10, moe_intermediate_size=17, num_experts=5),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy", rope_parameters=_LINEAR),
)

FLEX_OLMO = rows(
    "flex_olmo",
    {
        **SIZES,
        **ATTENTION,
        "intermediate_size": 24,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "pad_token_id": None,
    },
    row("norms behind"),
    row("weights normalised", norm_topk_prob=True),
    row("biases tied", attention_bias=True, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, intermediate_size=17),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)

SOLAR_OPEN = rows(
    "solar_open",
    {
        **SIZES,
        **ATTENTION,
        "head_dim": 16,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
    },
    row("whole heads rotated"),
    row("two shared experts", n_shared_experts=2, num_key_value_heads=4),
    row("grouped routing biases", n_group=4, topk_group=2, attention_bias=True),
    row("weights not normalised tied", norm_topk_prob=False, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD, head_dim=10, moe_intermediate_size=17, n_routed_experts=5),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy", rope_parameters=_LINEAR),
)
