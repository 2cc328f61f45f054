"""Rows of OLMo Hybrid."""

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

OLMO_HYBRID = rows(
    "olmo_hybrid",
    {
        **SIZES,
        **ATTENTION,
        "pad_token_id": None,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 10,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "rope_parameters": {"rope_theta": None, "rope_type": "default"},
    },
    row("attention in the middle"),
    row("convolutions as published", layout="convolutions by part"),
    row("legacy config", layout="legacy"),
    row("with positions", rope_parameters=rope("linear", factor=3.0, rope_theta=300.0)),
    row("betas below one", linear_allow_neg_eigval=False, tie_word_embeddings=True),
    row("attention in every fourth layer", num_hidden_layers=5, layer_types=None),
    row(
        "attention last and sizes by default",
        layer_types=None,
        num_key_value_heads=None,
        linear_num_key_heads=None,
        linear_num_value_heads=None,
        linear_key_head_dim=None,
        linear_value_head_dim=None,
    ),
    row(
        "attention first and last",
        layer_types=["full_attention", "linear_attention", "full_attention"],
        attention_bias=True,
        rms_norm_eps=0.5,
    ),
    row(
        "odd sizes",
        hidden_size=45,
        num_attention_heads=3,
        num_key_value_heads=1,
        linear_num_key_heads=3,
        linear_num_value_heads=3,
        linear_key_head_dim=7,
        linear_value_head_dim=5,
        linear_conv_kernel_dim=3,
    ),
)
