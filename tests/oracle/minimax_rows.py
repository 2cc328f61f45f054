"""Rows of MiniMax-01."""

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

MINIMAX = rows(
    "minimax",
    {
        **SIZES,
        **ATTENTION,
        "intermediate_size": 24,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "block_size": 8,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    row("attention in the middle"),
    row("attention in every second layer", layer_types=None, num_hidden_layers=4),
    row("lightning attention only", layer_types=["linear_attention"] * 3),
    row("attention only", layer_types=["full_attention"] * 3, rms_norm_eps=0.5),
    row(
        "weighted sums",
        full_attn_alpha_factor=1.5,
        full_attn_beta_factor=0.7,
        linear_attn_alpha_factor=0.8,
        linear_attn_beta_factor=1.3,
        mlp_alpha_factor=2,
        mlp_beta_factor=0.6,
    ),
    row("head_dim apart tied", head_dim=20, tie_word_embeddings=True, num_experts_per_tok=1),
    row(
        "linear rope and one long block", rope_parameters=rope("linear", factor=3.0), block_size=256
    ),
    row("odd sizes", hidden_size=45, num_attention_heads=3, num_key_value_heads=1, head_dim=10),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)
