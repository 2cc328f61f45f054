"""Rows of Kimi Linear and of Ling 3.0."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_HYBRID: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 24,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "pad_token_id": None,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_ORDERS: dict[str, list[str]] = {
    "attention first and last": ["full_attention", "linear_attention", "full_attention"],
    "no attention": ["linear_attention"] * 3,
    "attention only": ["full_attention"] * 3,
}
_MANY_GROUPS: dict[str, Any] = {"n_group": 4, "topk_group": 2, "norm_topk_prob": False}

KIMI_LINEAR = rows(
    "kimi_linear",
    {**_HYBRID, "linear_head_dim": 10, "linear_num_heads": 4},
    row("attention in the middle"),
    *(row(reason, layer_types=types) for reason, types in _ORDERS.items()),
    row("attention in every fourth layer", num_hidden_layers=5, layer_types=None),
    row("low rank queries and biases", q_lora_rank=20, attention_bias=True),
    row("groups of experts", **_MANY_GROUPS, n_shared_experts=2, routed_scaling_factor=0.7),
    row(
        "mlps elsewhere large eps", mlp_layer_types=["sparse", "dense", "sparse"], rms_norm_eps=0.5
    ),
    row(
        "odd sizes",
        hidden_size=45,
        num_attention_heads=3,
        num_key_value_heads=3,
        linear_num_heads=5,
        linear_head_dim=7,
        linear_conv_kernel_dim=3,
        kv_lora_rank=13,
        qk_nope_head_dim=7,
        qk_rope_head_dim=6,
        v_head_dim=5,
        moe_intermediate_size=11,
    ),
    row("legacy config", layout="legacy"),
)

BAILING_HYBRID = rows(
    "bailing_hybrid",
    {**_HYBRID, "head_dim": 10, "n_group": 4, "topk_group": 2},
    row("attention in the middle"),
    # So that it remembers for more than a few tokens.
    row("no attention", layer_types=["linear_attention"] * 3, kda_lower_bound=-0.1),
    row("attention only", layer_types=["full_attention"] * 3),
    row("attention first and last", layer_types=_ORDERS["attention first and last"]),
    row("groups of two layers", num_hidden_layers=4, layer_types=None, layer_group_size=2),
    row("unbounded decays", kda_safe_gate=False, n_group=1, topk_group=1),
    row(
        "another bound and base",
        kda_lower_bound=-0.7,
        rope_parameters=rope("default", rope_theta=300.0),
    ),
    row(
        "weights not normalised biases", norm_topk_prob=False, attention_bias=True, rms_norm_eps=0.5
    ),
    row(
        "odd sizes",
        hidden_size=45,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=7,
        short_conv_kernel_size=3,
        kv_lora_rank=13,
        qk_nope_head_dim=7,
        qk_rope_head_dim=6,
        v_head_dim=5,
        moe_intermediate_size=11,
    ),
    row("multi token prediction", layout="extra layer"),
)
