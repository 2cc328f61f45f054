"""Keys of older `config.json` files of models with latents: see `legacy.py`."""

from collections.abc import Mapping
from typing import Any

OLDER_KEYS: Mapping[str, Mapping[str, Any]] = {
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
    "axk2": {
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    "dots3_note_text": {
        "moe_layer_freq": [0, *[1] * 5],
        "moe_shared_expert_intermediate_size": 20,
        "num_nextn_predict_layers": 1,
        "scoring_func": "sigmoid",
        "sliding_window_size": 9,
        "swa_head_dim": 16,
        "swa_kv_lora_rank": 18,
        "swa_num_attention_heads": 3,
        "swa_num_key_value_heads": 3,
        "swa_q_lora_rank": 16,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": 10,
        "topk_method": "noaux_tc",
        "use_dsa": False,
    },
    "glm5_next": {
        "index_share_for_mtp_iteration": True,
        "linear_attn_config": {
            "full_attn_layers": [2],
            "gate_lower_bound": -0.7,
            "head_dim": 10,
            "kda_layers": [1, 3],
            "num_heads": 4,
            "safe_gate": True,
            "short_conv_kernel_size": 3,
        },
        "mla_use_nope": True,
        "num_nextn_predict_layers": 1,
    },
}

NEWER_KEYS: Mapping[str, tuple[str, ...]] = {
    "glm5_next": (
        *("linear_conv_kernel_dim", "linear_head_dim", "linear_num_heads"),
        *("linear_lower_bound", "qk_head_dim"),
    ),
    "deepseek_v2": ("head_dim", "qk_head_dim"),
    "deepseek_v3": ("head_dim", "qk_head_dim"),
    "minicpm3": ("head_dim", "qk_head_dim", "v_head_dim"),
    "glm4_moe_lite": ("mlp_layer_types", "qk_head_dim"),
    "longcat_flash": ("num_key_value_heads", "qk_head_dim"),
    "deepseek_v32": ("layer_types", "mlp_layer_types", "qk_head_dim"),
    "glm_moe_dsa": ("layer_types", "mlp_layer_types", "qk_head_dim"),
    "axk1": ("head_dim", "mlp_layer_types", "qk_head_dim"),
    "axk2": ("head_dim", "layer_types", "mlp_layer_types", "qk_head_dim"),
    "dots3_note_text": (
        *("layer_types", "mlp_layer_types", "per_layer_config", "sliding_window"),
        "shared_experts_intermediate_size",
    ),
}
