"""Rows of Granite 4.0."""

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_MIXED = ["linear_attention", "full_attention", "linear_attention"]

GRANITEMOEHYBRID = rows(
    "granitemoehybrid",
    {
        **SIZES,
        **ATTENTION,
        "layer_types": _MIXED,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "intermediate_size": 24,
        "shared_intermediate_size": 40,
        "mamba_n_heads": 12,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
        "embedding_multiplier": 1.6,
        "residual_multiplier": 0.8,
        "attention_multiplier": 0.4,
        "logits_scaling": 1.3,
    },
    row("experts and multipliers"),
    row("no experts", num_local_experts=0),
    row("one expert per token", num_experts_per_tok=1),
    row("rotated", position_embedding_type="rope", rope_parameters=rope("linear", factor=3.0)),
    row("attention first and last", layer_types=_MIXED[1:] + _MIXED[1:2]),
    row("no attention", layer_types=None),
    row("attention only", layer_types=["full_attention"] * 3, num_local_experts=0),
    row(
        "two groups sizes of heads given",
        mamba_n_groups=2,
        mamba_d_head=8,
        num_key_value_heads=None,
        head_dim=16,
    ),
    row("limited time steps", time_step_limit=(0.1, 0.4)),
    row("biases", attention_bias=True, mamba_proj_bias=True),
    row("no bias of the convolution tied", mamba_conv_bias=False, tie_word_embeddings=True),
    row(
        "odd sizes large eps",
        hidden_size=36,
        mamba_expand=1,
        mamba_n_heads=3,
        mamba_d_state=5,
        mamba_d_conv=3,
        mamba_chunk_size=7,
        num_local_experts=5,
        intermediate_size=13,
        shared_intermediate_size=21,
        rms_norm_eps=0.5,
    ),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)
