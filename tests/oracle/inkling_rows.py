"""Rows of Inkling: distances by learned profiles, behind short convolutions."""

from typing import Any

from tests.oracle.rows import row, rows

_FULL, _WINDOW = "hybrid", "hybrid_sliding"

_PLAIN: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 10,
    "sliding_window_size": 9,
    "d_rel": 4,
    "rel_extent": 14,
    "log_scaling_n_floor": 6,
    "log_scaling_alpha": 0.5,
    "layer_types": [_WINDOW, _FULL, _WINDOW],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "intermediate_size": 72,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "route_scale": 2.0,
    "logits_mup_width_multiplier": 1.5,
    "max_position_embeddings": 256,
}

INKLING = rows(
    "inkling_mm_model",
    _PLAIN,
    row("full attention between windows"),
    row("full attention first and last", layer_types=[_FULL, _WINDOW, _FULL]),
    row("windows only", layer_types=[_WINDOW] * 3, earliest_seen=16),
    row("full attention only", layer_types=[_FULL] * 3),
    row(
        "every sixth layer without a window",
        num_hidden_layers=7,
        layer_types=None,
        mlp_layer_types=None,
    ),
    row("scores that do not grow", log_scaling_n_floor=None),
    row("profiles of all distances", rel_extent=100, log_scaling_alpha=0.1),
    row("window of one profile", sliding_window_size=1, d_rel=1, rel_extent=1),
    row("one shared expert", n_shared_experts=1, route_scale=8.0),
    row("three shared experts one chosen", n_shared_experts=3, num_experts_per_tok=1),
    row("wide convolutions large eps", conv_kernel_size=7, rms_norm_eps=0.5),
    row("divided logits", logits_mup_width_multiplier=6.0),
    row(
        "odd sizes",
        hidden_size=45,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=7,
        swa_num_attention_heads=6,
        swa_num_key_value_heads=3,
        swa_head_dim=5,
        sliding_window_size=5,
        d_rel=3,
        rel_extent=11,
        conv_kernel_size=3,
        intermediate_size=33,
        moe_intermediate_size=11,
    ),
    row("published config", layout="legacy", conv_kernel_size=3),
)
