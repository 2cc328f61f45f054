"""Checkpoints with random weights, of 180 to 410 M parameters, in the real format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCAB = 32_000
SHARED = {"vocab_size": VOCAB, "tie_word_embeddings": True, "max_position_embeddings": 8192}

LLAMA = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 14,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
DEEPSEEK = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 10,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "n_group": 1,  # vLLM wants these two, which the releases have
    "topk_group": 1,
}
JAMBA = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "attn_layer_period": 5,
    "attn_layer_offset": 2,
    "num_experts": 1,
}
BAMBA = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "attn_layer_indices": [5, 9],
    "mamba_n_heads": 32,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
}
QWEN3_NEXT = {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,  # three of the gated delta rule, then one of attention, twice
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
LFM2 = {
    "hidden_size": 1024,
    "intermediate_size": 6656,  # of which two thirds are used
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "conv_dim": 1024,  # vLLM reads these, which the releases have
    "block_dim": 1024,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": LLAMA,
    "deepseek_v2": DEEPSEEK,
    "jamba": JAMBA,
    "bamba": BAMBA,
    "qwen3_next": QWEN3_NEXT,
    "lfm2": LFM2,
}


def make_checkpoint(model_type: str, directory: Path, **changes: Any) -> Path:
    """Saves the model in bfloat16 through transformers; returns its folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SHARED, **MODELS[model_type], **changes})
    config.pad_token_id = None
    path = directory / model_type
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    return path
