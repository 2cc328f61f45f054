"""Rows of ZAYA1."""

from tests.oracle.rows import SIZES, rope, row, rows

ZAYA = rows(
    "zaya",
    {
        **SIZES,
        "max_position_embeddings": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "router_hidden_size": 20,
    },
    row("attention to everything"),
    row(
        "windows in some layers",
        layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding"],
        sliding_window=7,
    ),
    row(
        "biases and apart embeddings",
        attention_bias=True,
        lm_head_bias=True,
        tie_word_embeddings=False,
    ),
    row("wide convolutions", cca_time0=4, cca_time1=3, attention_bias=True),
    row("one tap each", cca_time0=1, cca_time1=2, num_key_value_heads=4),
    row(
        "other waves large eps",
        rms_norm_eps=0.5,
        rope_parameters={
            "hybrid": rope("linear", factor=3.0, partial_rotary_factor=0.67),
            "hybrid_sliding": rope("default"),
        },
    ),
    row("many experts tied", num_experts=9, lm_head_bias=True),
    row(
        "odd sizes",
        hidden_size=45,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=10,
        moe_intermediate_size=11,
        router_hidden_size=13,
        rope_parameters={
            "hybrid": rope("default", partial_rotary_factor=0.6),
            "hybrid_sliding": rope("default"),
        },
    ),
)
