"""Rows of Nemotron-H and Nemotron 3."""

from tests.oracle.rows import row, rows

_M, _A, _F, _E = "linear_attention", "full_attention", "mlp", "moe"
_EXPERTS = {
    "layers_block_type": [_M, _E, _A, _E],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}

NEMOTRON_H = rows(
    "nemotron_h",
    {
        "vocab_size": 131,
        "hidden_size": 48,
        "layers_block_type": [_M, _F, _A, _M],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 72,
        "max_position_embeddings": 256,
        "mamba_num_heads": 6,
        "mamba_head_dim": 10,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 8,
    },
    row("mlp between mixers"),
    row("experts", **_EXPERTS),
    row(
        "experts in groups not normalised",
        **_EXPERTS,
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
    ),
    row("latent experts with biases", **_EXPERTS, moe_latent_size=20, mlp_bias=True),
    row(
        "attention and experts first mamba last",
        **{**_EXPERTS, "layers_block_type": [_A, _E, _F, _M]},
    ),
    row("attention only", layers_block_type=[_A, _F, _A, _F]),
    row("no attention", layers_block_type=[_F, _M, _M, _F], num_key_value_heads=4),
    row("no step below time_step_min", time_step_min=0.3),
    row("biases", use_bias=True, mlp_bias=True, use_conv_bias=False),
    row("a group per head", n_groups=6, residual_in_fp32=True),
    row(
        "odd sizes large eps",
        **{**_EXPERTS, "n_routed_experts": 5, "moe_intermediate_size": 13, "moe_latent_size": 7},
        hidden_size=45,
        num_key_value_heads=1,
        head_dim=9,
        mamba_num_heads=3,
        mamba_head_dim=7,
        ssm_state_size=5,
        n_groups=1,
        conv_kernel=3,
        chunk_size=7,
        layer_norm_epsilon=0.5,
    ),
    row("stacked experts", layout="stacked", **_EXPERTS),
    row("legacy config", layout="legacy"),
)
