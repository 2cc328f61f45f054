"""Rows of Mamba, Mamba-2, Jamba and Bamba."""

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

MAMBA = rows(
    "mamba",
    {**SIZES, "hidden_size": 32, "state_size": 8},
    row("tied embeddings"),
    row("untied embeddings", tie_word_embeddings=False),
    row("biases", use_bias=True),
    row("no bias of the convolution", use_conv_bias=False),
    row("short convolution", conv_kernel=2),
    row("odd sizes", hidden_size=33, expand=1, state_size=5, conv_kernel=3),
    row("wide steps and states", time_step_rank=7, state_size=16, expand=3),
    row("residual in model dtype", residual_in_fp32=False),
    row("large eps", layer_norm_epsilon=0.5),
    row("legacy config", layout="legacy"),
)

_MAMBA2_SIZES = {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 16}
MAMBA2 = rows(
    "mamba2",
    {**SIZES, **_MAMBA2_SIZES, "n_groups": 2, "chunk_size": 8},
    row("two groups"),
    row("one group", n_groups=1),
    row("a group per head", n_groups=8),
    row("limited time steps", time_step_limit=(0.1, 0.4)),
    row("biases", use_bias=True),
    row("no bias of the convolution", use_conv_bias=False),
    row("tied embeddings", tie_word_embeddings=True),
    row("odd chunks", chunk_size=5),
    row("one long chunk", chunk_size=256),
    row(
        "odd sizes",
        hidden_size=30,
        num_heads=5,
        head_dim=12,
        n_groups=1,
        state_size=7,
        conv_kernel=3,
    ),
    row("large eps", layer_norm_epsilon=0.5, residual_in_fp32=False),
    row("legacy config", layout="legacy"),
)

JAMBA = rows(
    "jamba",
    {
        **SIZES,
        **ATTENTION,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_experts": 4,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
    },
    row("experts every second layer"),
    row("no experts", num_experts=1, num_experts_per_tok=1),
    row("experts in every layer", expert_layer_period=1, expert_layer_offset=0),
    row("one expert per token", num_experts_per_tok=1),
    row("attention only", attn_layer_period=1, attn_layer_offset=0),
    row("no attention", attn_layer_period=8, attn_layer_offset=7),
    row("biases", mamba_proj_bias=True),
    row("no bias of the convolution", mamba_conv_bias=False),
    row("odd sizes", hidden_size=36, mamba_expand=1, mamba_dt_rank=5, mamba_d_state=5),
    row("large eps short convolution", rms_norm_eps=0.5, mamba_d_conv=3),
    row("tied embeddings", tie_word_embeddings=True),
    row("stacked experts", layout="stacked"),
    row("legacy config", layout="legacy"),
)

BAMBA = rows(
    "bamba",
    {
        **SIZES,
        **ATTENTION,
        "attn_layer_indices": [1],
        "mamba_n_heads": 12,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
    },
    row("attention in the middle"),
    row("attention first and last", attn_layer_indices=[0, 2]),
    row("no attention", attn_layer_indices=None),
    row("attention only", attn_layer_indices=[0, 1, 2]),
    row("two groups", mamba_n_groups=2),
    row("full rotary", rope_parameters=rope("default", partial_rotary_factor=1.0)),
    row("few rotary", rope_parameters=rope("linear", factor=3.0, partial_rotary_factor=0.2)),
    row("limited time steps", time_step_limit=(0.1, 0.4)),
    row("biases", attention_bias=True, mlp_bias=True, mamba_proj_bias=True),
    row("no bias of the convolution", mamba_conv_bias=False),
    row("large eps tied", rms_norm_eps=0.5, tie_word_embeddings=True),
    row(
        "odd sizes",
        hidden_size=36,
        mamba_expand=1,
        mamba_n_heads=3,
        mamba_d_state=5,
        mamba_d_conv=3,
        mamba_chunk_size=7,
    ),
    row("legacy config", layout="legacy"),
)
