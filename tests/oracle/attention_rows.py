"""Rows of Mistral, Qwen2, OLMo 2 and SmolLM3."""

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_LINEAR = rope("linear", factor=3.0)
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
_ODD = {"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 3}

MISTRAL = rows(
    "mistral",
    {**SIZES, **ATTENTION, "sliding_window": None},
    row("everything is seen"),
    row("a window", sliding_window=7, earliest_seen=30),
    row("a window of two tokens", sliding_window=2, earliest_seen=38),
    row("head_dim apart from hidden_size", head_dim=20, num_key_value_heads=4),
    row(
        "large eps and base tied",
        rms_norm_eps=0.5,
        rope_parameters=_SHORT_WAVES,
        tie_word_embeddings=True,
    ),
    row("yarn rope in a window", rope_parameters=_YARN, sliding_window=20, earliest_seen=20),
    row("odd sizes", **_ODD, head_dim=10, intermediate_size=51, sliding_window=5, earliest_seen=34),
    row("legacy config", layout="legacy", sliding_window=9, earliest_seen=28),
)

QWEN2 = rows(
    "qwen2",
    {**SIZES, **ATTENTION},
    row("grouped heads"),
    row("one key head tied", num_key_value_heads=1, tie_word_embeddings=True),
    row(
        "windows from the second layer on",
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=1,
    ),
    row(
        "windows by layer types",
        use_sliding_window=True,
        sliding_window=6,
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
    row("a window that is not used", sliding_window=4, max_window_layers=0),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("yarn rope", rope_parameters=_YARN),
    row("odd sizes", **_ODD, intermediate_size=51),
    row("legacy config", layout="legacy", rope_parameters=_YARN),
)

OLMO2 = rows(
    "olmo2",
    {**SIZES, **ATTENTION},
    row("grouped heads"),
    row("a head per key", num_key_value_heads=4),
    row("biases", attention_bias=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("tied embeddings linear rope", tie_word_embeddings=True, rope_parameters=_LINEAR),
    row("odd sizes", **_ODD, intermediate_size=51),
    row("legacy config", layout="legacy", rope_parameters=_LINEAR),
)

SMOLLM3 = rows(
    "smollm3",
    {
        **SIZES,
        **ATTENTION,
        "num_hidden_layers": 4,
        "no_rope_layer_interval": 2,
        "pad_token_id": None,
    },
    row("every second layer without positions"),
    row("the first and last without positions", no_rope_layers=[0, 1, 1, 0]),
    row("no layer without positions", no_rope_layer_interval=9, tie_word_embeddings=False),
    row("windows without positions", use_sliding_window=True, sliding_window=6),
    row(
        "windows by layer types",
        use_sliding_window=True,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
    ),
    # Keys' biases are without effect where there are no positions.
    row("biases", attention_bias=True, mlp_bias=True, no_rope_layers=[1] * 4),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes yarn rope", **_ODD, intermediate_size=51, rope_parameters=_YARN),
    row("legacy config", layout="legacy", no_rope_layers=[1, 0, 1, 1]),
)
