"""`config.json` files as releases of transformers before 5 wrote them."""

import json
import math
from pathlib import Path
from typing import Any

_NOTHING_MORE = (
    *("flex_olmo", "solar_open", "granite", "granitemoe", "granitemoeshared"),
    *("glm", "glm4", "arcee"),
)
# What older config.json files of each model hold beyond today's, with the values
# of the real checkpoints. None of them changes the result.
_LEGACY_KEYS: dict[str, dict[str, Any]] = {
    "llama": {"pretraining_tp": 1},
    "qwen3": {"use_sliding_window": False, "max_window_layers": 3, "sliding_window": None},
    "mistral": {},
    **{name: {} for name in _NOTHING_MORE},
    "phi3": {"embd_pdrop": 0.0, "full_attn_mod": 1, "partial_rotary_factor": 0.5},
    "exaone_moe": {"num_nextn_predict_layers": 1, "scoring_func": "sigmoid"},
    "ernie4_5_moe": {"moe_gate": "topk", "moe_use_aux_free": True, "moe_capacity": [64, 64, 64]},
    "exaone4": {"sliding_window_pattern": "LLLG"},
    "cohere": {"use_qk_norm": False},
    "cohere2": {
        "cache_implementation": "hybrid",
        "layer_switch": 4,
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "sliding_window_pattern": 4,
        "use_parallel_block": True,
    },
    "nemotron": {"partial_rotary_factor": 0.5},
    "starcoder2": {"embedding_dropout": 0.1, "mlp_type": "default", "norm_type": "layer_norm"},
    "stablelm": {"partial_rotary_factor": 0.5},
    "dots1": {"moe_layer_freq": 1, "scoring_func": "noaux_tc"},
    "glm4_moe": {"num_nextn_predict_layers": 1},
    "seed_oss": {"pretraining_tp": 1},
    "ernie4_5": {"compression_ratio": 1.0},
    "helium": {},
    "olmoe": {"clip_qkv": None},
    "qwen2_moe": {"use_sliding_window": False},
    "hunyuan_v1_dense": {"use_cla": False, "cla_share_factor": 2, "use_qk_norm": True},
    "hunyuan_v1_moe": {"moe_intermediate_size": [24] * 3, "num_shared_expert": [1, 1, 1]},
    "qwen2": {"use_mrope": False},
    "qwen3_moe": {"num_experts": 8, "max_window_layers": 3},
    "mixtral": {"router_jitter_noise": 0.0},
    "olmo2": {},
    "smollm3": {"max_window_layers": 4, "pretraining_tp": 2},
    "minimax_m2": {
        "attn_type_list": [1, 1, 1],
        "mtp_transformer_layers": 1,
        "num_mtp_modules": 3,
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "use_mtp": True,
        "use_qk_norm": True,
        "use_routing_bias": True,
    },
    "deepseek_v2": {
        "scoring_func": "softmax",
        "moe_layer_freq": 1,
        "ep_size": 1,
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
    },
    "deepseek_v3": {
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "ep_size": 1,
    },
    "minicpm3": {},
    "glm4_moe_lite": {
        "topk_method": "noaux_tc",
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 1.0,
    },
    "longcat_flash": {
        "attention_method": "MLA",
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "zero_expert_type": "identity",
    },
    "deepseek_v32": {
        "ep_size": 1,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    "glm_moe_dsa": {
        "ep_size": 1,
        "indexer_rope_interleave": True,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    "axk1": {
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    "mamba": {
        "d_inner": 64,
        "d_model": 32,
        "n_layer": 3,
        "fused_add_norm": True,
        "rms_norm": True,
        "ssm_cfg": {},
    },
    "granitemoehybrid": {
        "init_method": "mup",
        "layer_types": ["mamba", "attention", "mamba"],
        "normalization_function": "rmsnorm",
        "position_embedding_type": "nope",
    },
    "nemotron_h": {
        "hybrid_override_pattern": "M-*M",
        "attention_head_dim": 16,
        "num_hidden_layers": 4,
        "rms_norm_eps": 1e-05,
        "time_step_rank": 256,
    },
    "zamba": {
        "attention_head_dim": 24,
        "attention_hidden_size": 96,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "mamba_dt_rank": "auto",
        "use_mamba_kernels": True,
    },
    "zamba2": {
        "attention_head_dim": 24,
        "attention_hidden_size": 96,
        "hybrid_layer_ids": [1, 3],
        "kv_channels": 12,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "mamba_headdim": 8,
        "num_query_groups": 4,
        "time_step_limit": None,
        "use_shared_mlp_adapter": True,
    },
    "falcon_h1": {"attn_layer_indices": None, "mamba_use_mlp": True, "mlp_expansion_factor": 8},
    "falcon_mamba": {"use_falcon_mambapy": False, "intermediate_size": 64},
    "qwen3_next": {"full_attention_interval": 4, "partial_rotary_factor": 0.25},
    "minimax": {
        "attn_type_list": [0, 1, 0],
        "postnorm": True,
        "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid",
    },
    "lfm2": {
        "block_dim": 48,
        "block_ff_dim": 72,
        "block_norm_eps": 1e-5,
        "block_use_swiglu": True,
        "conv_dim": 48,
        "full_attn_idxs": [1],
        "num_heads": 4,
        "tie_embedding": True,
        "use_pos_enc": True,
    },
    "olmo_hybrid": {"linear_dt_min": 0.001, "linear_dt_max": 0.1},
    "kimi_linear": {
        "first_k_dense_replace": 1,
        "linear_attn_config": {
            "full_attn_layers": [2],
            "head_dim": 10,
            "kda_layers": [1, 3],
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
        "mla_use_nope": True,
        "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid",
        "num_nextn_predict_layers": 0,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "use_grouped_topk": True,
    },
    "mamba2": {"norm_before_gate": True, "rms_norm": True, "intermediate_size": 64},
    "jamba": {"use_mamba_kernels": True, "sliding_window": None, "num_logits_to_keep": 1},
    "bamba": {"attn_rotary_emb": 6, "mamba_d_head": "auto"},
    "gemma2": {
        "cache_implementation": "hybrid",
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window_size": 9,
    },
    "mimo_v2_flash": {
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "attention_chunk_size": 9,
        "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1],
        "layernorm_epsilon": 1e-5,
        "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1],
        "n_shared_experts": None,
        "partial_rotary_factor": 0.334,
        "routed_scaling_factor": None,
        "scoring_func": "sigmoid",
        "sliding_window_size": 8,
        "swa_head_dim": 18,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_v_head_dim": 10,
        "topk_method": "noaux_tc",
    },
    "gemma4_text": {"global_head_dim": 20, "num_global_key_value_heads": 1},
    "recurrent_gemma": {
        "embeddings_scale_by_sqrt_dim": True,
        "head_dim": 12,
        "hidden_act": "gelu_pytorch_tanh",
        "partial_rotary_factor": 0.5,
    },
    "llama4_text": {"for_llm_compressor": False},
    "gemma": {"hidden_act": "gelu", "hidden_activation": None},
    "vaultgemma": {"cache_implementation": "hybrid"},
    "gpt_oss": {"experts_per_token": 3, "initial_context_length": 64},
    "gemma3_text": {"cache_implementation": "hybrid", "sliding_window_pattern": 3},
}
# What they did not hold yet, beside `dtype` and `rope_parameters`.
_NEWER_KEYS = {
    "llama": ("head_dim",),
    "qwen3": ("layer_types",),
    "qwen3_next": ("layer_types",),
    "kimi_linear": (
        *("linear_conv_kernel_dim", "linear_head_dim", "linear_num_heads"),
        *("layer_types", "mlp_layer_types", "qk_head_dim"),
    ),
    "lfm2": ("intermediate_size", "layer_types", "tie_word_embeddings"),
    "mistral": ("head_dim",),
    "cohere2": ("layer_types", "head_dim"),
    "dots1": ("layer_types",),
    "qwen2_moe": ("layer_types",),
    "qwen2": ("layer_types",),
    "qwen3_moe": ("num_local_experts",),
    "smollm3": ("layer_types",),
    "nemotron_h": ("layers_block_type",),
    "deepseek_v2": ("head_dim", "qk_head_dim"),
    "deepseek_v3": ("head_dim", "qk_head_dim"),
    "minicpm3": ("head_dim", "qk_head_dim", "v_head_dim"),
    "glm4_moe_lite": ("mlp_layer_types", "qk_head_dim"),
    "longcat_flash": ("num_key_value_heads", "qk_head_dim"),
    "deepseek_v32": ("layer_types", "mlp_layer_types", "qk_head_dim"),
    "glm_moe_dsa": ("layer_types", "mlp_layer_types", "qk_head_dim"),
    "axk1": ("head_dim", "mlp_layer_types", "qk_head_dim"),
    "gemma2": ("layer_types", "use_bidirectional_attention"),
    "mimo_v2_flash": ("layer_types", "mlp_layer_types", "rms_norm_eps"),
    "llama4_text": ("layer_types", "moe_layers"),
    "vaultgemma": ("layer_types",),
    "gemma4_text": ("per_layer_config",),
    "gemma3_text": ("_sliding_window_pattern", "layer_types", "use_bidirectional_attention"),
}
# What they called the base of the rotary embedding in layers with windows.
_WINDOW_THETAS = {"gemma3_text": "rope_local_base_freq", "mimo_v2_flash": "swa_rope_theta"}


def rewrite_config(path: Path, model_type: str) -> None:
    """Spells `config.json` as releases before 5 did, with the keys of those days."""
    config = json.loads(path.read_text())
    for key in _NEWER_KEYS.get(model_type, ()):
        del config[key]
    config["torch_dtype"] = config.pop("dtype")
    rope, key = config.pop("rope_parameters", None), "type"
    if model_type == "gemma4_text":
        config["rope_parameters"], rope = rope, None
    if rope is not None and "sliding_attention" in rope:
        config[_WINDOW_THETAS[model_type]] = rope["sliding_attention"]["rope_theta"]
        rope, key = rope["full_attention"], "rope_type"
    if rope is not None:
        rope.pop("partial_rotary_factor", None)
        rope_type, config["rope_theta"] = rope.pop("rope_type"), rope.pop("rope_theta")
        config["rope_scaling"] = None if rope_type == "default" else {key: rope_type, **rope}
        if model_type == "mimo_v2_flash":
            del config["rope_scaling"]  # which transformers warns of
    if "time_step_limit" in config:
        config["time_step_limit"] = [0.0, math.inf]
    config.update(_LEGACY_KEYS[model_type])
    path.write_text(json.dumps(config, indent=2))
