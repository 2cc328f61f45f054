"""Tiny models, and the metadata that llama.cpp's converters write of each."""

from typing import Any

_SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
_MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
_ATTENTION_KEYS: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 3,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "vocab_size": 131,
}
_SSM_KEYS = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16}
_SSM2_KEYS = {**_SSM_KEYS, "ssm.time_step_rank": 8, "ssm.group_count": 2}
_MAMBA_SIZES = {
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "state_size": 16,
    "expand": 2,
    "time_step_rank": 4,
    "layer_norm_epsilon": 1e-5,
}
_MAMBA_KEYS = {
    "context_length": 2**20,
    "embedding_length": 64,
    "feed_forward_length": 0,
    "attention.head_count": 0,
    "block_count": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    **_SSM_KEYS,
    "ssm.time_step_rank": 4,
}
_LLAMA = {**_SIZES, **_ROPE, "rms_norm_eps": 1e-5}
LLAMA_KEYS = {**_ATTENTION_KEYS, "rope.freq_base": 1000.0, "rope.dimension_count": 16}
_GRANITE = {
    **_SIZES,
    **_MAMBA2,
    "rms_norm_eps": 1e-5,
    "shared_intermediate_size": 80,
    "layer_types": ["mamba", "attention", "mamba"],
    "position_embedding_type": None,
    "attention_multiplier": 0.11,
    "embedding_multiplier": 2.5,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
_GRANITE_KEYS = {
    **_ATTENTION_KEYS,
    **_SSM2_KEYS,
    "attention.head_count_kv": [0, 2, 0],
    "attention.scale": 0.11,
    "embedding_scale": 2.5,
    "residual_scale": 0.4,
    "logit_scale": 3.0,
    "rope.scaling.finetuned": False,
    "rope.dimension_count": 16,
    "context_length": 2**20,
}

MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", _LLAMA, LLAMA_KEYS),
    "llama tied, biased, heads apart": (
        "llama",
        "llama",
        {
            **_LLAMA,
            "head_dim": 32,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
        {
            **LLAMA_KEYS,
            "rope.dimension_count": 32,
            "attention.key_length": 32,
            "attention.value_length": 32,
        },
    ),
    "llama yarn": (
        "llama",
        "llama",
        {
            **_LLAMA,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        {
            **LLAMA_KEYS,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "mamba": (
        "mamba",
        "mamba",
        {**_MAMBA_SIZES, "use_bias": False},
        {**_MAMBA_KEYS, "ssm.dt_b_c_rms": False},
    ),
    "falcon_mamba": (
        "falcon_mamba",
        "mamba",
        {**_MAMBA_SIZES, "intermediate_size": 128},
        {**_MAMBA_KEYS, "ssm.dt_b_c_rms": True},
    ),
    "jamba": (
        "jamba",
        "jamba",
        {
            **_SIZES,
            "num_hidden_layers": 4,
            "rms_norm_eps": 1e-5,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "attn_layer_period": 3,
            "attn_layer_offset": 2,
            "mamba_d_state": 16,
            "mamba_dt_rank": 4,
        },
        {
            **_ATTENTION_KEYS,
            **_SSM_KEYS,
            "block_count": 4,
            "attention.head_count_kv": [0, 0, 2, 0],
            "ssm.time_step_rank": 4,
            "expert_count": 4,
            "expert_used_count": 2,
        },
    ),
    "falcon_h1": (
        "falcon_h1",
        "falcon-h1",
        {
            **_SIZES,
            **_ROPE,
            **_MAMBA2,
            "head_dim": 16,
            "rms_norm_eps": 1e-5,
            "mamba_d_ssm": 128,
            "mamba_norm_before_gate": False,
            "mamba_rms_norm": True,
            "mlp_multipliers": [0.7, 1.4],
            "ssm_multipliers": [0.5, 0.8, 1.1, 1.3, 0.9],
            "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.6,
            "attention_in_multiplier": 0.9,
            "attention_out_multiplier": 1.2,
            "key_multiplier": 0.8,
            "lm_head_multiplier": 0.9,
            "embedding_multiplier": 1.5,
        },
        {
            **_ATTENTION_KEYS,
            **_SSM2_KEYS,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.freq_base": 1000.0,
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        "nemotron_h",
        {
            "vocab_size": 131,
            "hidden_size": 64,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 96,
            "max_position_embeddings": 256,
            "ssm_state_size": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "chunk_size": 16,
            "layer_norm_epsilon": 1e-5,
        },
        {
            **_ATTENTION_KEYS,
            **_SSM2_KEYS,
            "block_count": 4,
            "attention.head_count_kv": [0, 0, 2, 0],
            "feed_forward_length": [0, 96, 0, 96],
            "attention.key_length": 32,
            "attention.value_length": 32,
            "rope.scaling.finetuned": False,
        },
    ),
    "granite with experts": (
        "granitemoehybrid",
        "granitehybrid",
        {**_GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2},
        {
            **_GRANITE_KEYS,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_shared_feed_forward_length": 80,
        },
    ),
    "granite without experts": (
        "granitemoehybrid",
        "granitehybrid",
        {**_GRANITE, "num_local_experts": 0, "tie_word_embeddings": True},
        {**_GRANITE_KEYS, "expert_shared_feed_forward_length": 80},
    ),
    "lfm2": (
        "lfm2",
        "lfm2",
        {
            **_SIZES,
            **_ROPE,
            "block_auto_adjust_ff_dim": False,
            "norm_eps": 1e-5,
            "conv_L_cache": 3,
            "layer_types": ["conv", "full_attention", "conv"],
        },
        {
            **_ATTENTION_KEYS,
            "attention.head_count_kv": [0, 2, 0],
            "shortconv.l_cache": 3,
            "rope.freq_base": 1000.0,
        },
    ),
}
"""Name -> model type, architecture, what to make the configuration from, metadata."""
