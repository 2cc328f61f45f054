"""Rows of Inkling 2: inputs picked out of blocks, attention of bounded lengths."""

from typing import Any

from tests.oracle.rows import row, rows

_FULL, _WINDOW = "hybrid", "hybrid_sliding"

_PLAIN: dict[str, Any] = {
    "vocab_size": 131,
    "unpadded_vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 4,
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
    "qk_l2_clip_threshold": 4.0,
    "rel_l2_clip_threshold": 2.0,
    "layer_types": [_WINDOW, _FULL, _WINDOW, _FULL],
    "n_layers_per_attn_res_block": 2,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "route_scale": 2.0,
    "mlp_gate_softcap": 1.5,
    "mlp_up_softcap": 2.0,
    "final_logit_softcapping": 8.0,
    "max_position_embeddings": 256,
}

INKLING2 = rows(
    "inkling2",
    _PLAIN,
    row("windows and full attention by turns"),
    row(
        "full attention first a block a layer",
        layer_types=[_FULL, _WINDOW, _FULL, _FULL],
        n_layers_per_attn_res_block=1,
    ),
    row("windows only", layer_types=[_WINDOW] * 4, earliest_seen=12),
    row("full attention only one block", layer_types=[_FULL] * 4, n_layers_per_attn_res_block=9),
    row(
        "every sixth layer without a window",
        num_hidden_layers=7,
        layer_types=None,
        n_layers_per_attn_res_block=3,
    ),
    row("nothing is clipped", qk_l2_clip_threshold=1000.0, rel_l2_clip_threshold=1000.0),
    row("short vectors", qk_l2_clip_threshold=1.5, rel_l2_clip_threshold=0.7),
    row("profiles of all distances", rel_extent=100, log_scaling_alpha=0.1),
    row("window of one profile", sliding_window_size=1, d_rel=1, rel_extent=1),
    row("one expert chosen hardly bent", num_experts_per_tok=1, mlp_gate_softcap=20.0),
    row("wide convolutions large eps", conv_kernel_size=7, rms_norm_eps=0.5),
    row("bent logits", final_logit_softcapping=2.0, mlp_up_softcap=0.5, route_scale=5.0),
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
        log_scaling_n_floor=9,
        conv_kernel_size=3,
        n_layers_per_attn_res_block=3,
        moe_intermediate_size=11,
    ),
    row("other names of sizes", layout="legacy", conv_kernel_size=3),
)
