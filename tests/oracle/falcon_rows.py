"""Rows of Falcon Mamba and Falcon-H1."""

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

FALCON_MAMBA = rows(
    "falcon_mamba",
    {**SIZES, "hidden_size": 32, "state_size": 8},
    row("tied embeddings"),
    row("untied embeddings", tie_word_embeddings=False),
    row("large eps of the inner norms", mixer_rms_eps=0.5),
    row("an intermediate size that expand does not say", expand=16, intermediate_size=40),
    row("biases", use_bias=True, use_conv_bias=False),
    row("residual in model dtype large eps", residual_in_fp32=False, layer_norm_epsilon=0.5),
    row("odd sizes", hidden_size=33, expand=1, state_size=5, conv_kernel=3, time_step_rank=7),
    row("legacy config", layout="legacy"),
)

FALCON_H1 = rows(
    "falcon_h1",
    {
        **SIZES,
        **ATTENTION,
        "mamba_d_ssm": 48,
        "mamba_n_heads": 6,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
        "ssm_multipliers": [0.8, 1.3, 0.7, 1.2, 1.5],
        "mlp_multipliers": [1.4, 0.7],
        "embedding_multiplier": 1.7,
        "lm_head_multiplier": 0.8,
        "key_multiplier": 0.6,
        "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.9,
        "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.8,
    },
    row("multipliers"),
    row("no multipliers of parts", ssm_multipliers=None, mlp_multipliers=None),
    row("no size of the recurrence", mamba_d_ssm=None),
    row("normed before the gate", mamba_rms_norm=True, mamba_n_groups=2),
    row("normed behind the gate", mamba_rms_norm=True, mamba_norm_before_gate=False),
    row("biases", attention_bias=True, mlp_bias=True, mamba_proj_bias=True),
    row("bias of the projectors", projectors_bias=True, mamba_conv_bias=False),
    row("limited time steps", time_step_limit=(0.1, 0.4)),
    row("linear rope tied", rope_parameters=rope("linear", factor=3.0), tie_word_embeddings=True),
    row(
        "head_dim apart from hidden_size large base",
        head_dim=16,
        num_key_value_heads=1,
        rope_parameters=rope("default", rope_theta=1e11),
    ),
    row(
        "odd sizes large eps",
        hidden_size=36,
        head_dim=10,
        mamba_d_ssm=21,
        mamba_n_heads=3,
        mamba_d_state=5,
        mamba_d_conv=3,
        mamba_chunk_size=7,
        rms_norm_eps=0.5,
    ),
    row("legacy config", layout="legacy"),
)
