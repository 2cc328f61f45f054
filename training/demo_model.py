"""The demo model: its config, and the weights it starts from."""

import math
from typing import Any

import torch

from hybridrt.demo.facts import KINDS
from training.dense import DenseStack

EOS = 256
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MAMBA1 = {"type": "mamba1", "intermediate_size": 128, "state_size": 8, "time_step_rank": 8}
MAMBA2 = {"type": "mamba2", "num_heads": 4, "head_dim": 32, "state_size": 16}
ATTENTION = {
    "type": "attention",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
}
MLA = {
    "type": "mla",
    "num_attention_heads": 4,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 32,
    "rope_parameters": ROPE,
}
MLP = {"type": "mlp", "intermediate_size": 256}

# Two short convolutions before the first attention: together they see the seven
# characters of `amy=372`, so that a digit's key holds the name it belongs to.
CONFIG: dict[str, Any] = {
    "model_type": "hybrid_stack",
    "vocab_size": 257,
    "hidden_size": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "dtype": "float32",
    "layers": [MAMBA1, MAMBA2, ATTENTION, MAMBA2, MLA, MAMBA1, MLP],
}
LAYER_TYPES = tuple(layer["type"] for layer in CONFIG["layers"])
assert set(KINDS) <= set(LAYER_TYPES)


def initialise(model: DenseStack) -> None:
    """Small embeddings, fan-in scaled projections, step sizes from 1e-3 to 1e-1."""
    for name, p in model.named_parameters():
        if "embed_tokens" in name:
            torch.nn.init.normal_(p, std=0.05)
        elif p.ndim == 2 and "A_log" not in name:
            torch.nn.init.normal_(p, std=p.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                p.data *= 0.5
        elif name.endswith(("dt_bias", "dt_proj.bias")):
            dt = torch.exp(torch.empty_like(p).uniform_(math.log(1e-3), math.log(1e-1)))
            # The inverse of softplus.
            p.data = dt + torch.log(-torch.expm1(-dt))
